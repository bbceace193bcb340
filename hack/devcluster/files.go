// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// FindRoot returns the nearest directory with a go.work, from dir upwards.
func FindRoot(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if isFile(filepath.Join(at, "go.work")) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.work in %s or above", dir)
		}
	}
}

// writeFile replaces a file in one step: readers see the old or the new one,
// also when several write it at once.
func writeFile(path string, data []byte, mode os.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Chmod(mode), file.Close()); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), path)
}

// tail returns the last lines of a log.
func tail(path string, lines int) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	const most = 16 << 10
	info, err := file.Stat()
	if err != nil {
		return err.Error()
	}
	buffer := make([]byte, min(info.Size(), most))
	n, err := file.ReadAt(buffer, info.Size()-int64(len(buffer)))
	if n < len(buffer) {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(buffer[:n])), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// freePorts returns n loopback ports nobody listens on. They lie below the
// range from which the kernel takes ports for outgoing connections, so that
// none is taken between the choice and its use, or while a server restarts.
func freePorts(n int) ([]int, error) {
	const lowest, count, attempts = 20000, 10000, 200
	var ports []int
	for range attempts {
		if len(ports) == n {
			return ports, nil
		}
		port := lowest + rand.IntN(count)
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		defer listener.Close() // held until all are chosen: they are distinct
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("found %d free loopback ports of %d", len(ports), n)
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
