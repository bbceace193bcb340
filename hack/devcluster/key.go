// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// inputKey names what a build of the module in dir is made from: its files, by
// path and content, and the given settings. Tests, documentation, hidden files
// and modules nested in it are no inputs.
func inputKey(dir string, settings ...string) (string, error) {
	sum := sha256.New()
	for _, s := range settings {
		fmt.Fprintf(sum, "setting %d %s\n", len(s), s)
	}
	// WalkDir goes in lexical order, so equal trees give equal keys.
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		switch {
		case path == dir:
			return nil
		case entry.IsDir() && (strings.HasPrefix(name, ".") || isFile(filepath.Join(path, "go.mod"))):
			return fs.SkipDir
		case !entry.Type().IsRegular(), strings.HasPrefix(name, "."),
			strings.HasSuffix(name, "_test.go"), strings.HasSuffix(name, ".md"):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "file %s %d\n", filepath.ToSlash(relative), len(content))
		sum.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read the inputs in %s: %w", dir, err)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// lock takes an exclusive lock on a file and returns what releases it. The
// kernel releases it too when this program ends. waiting is called once if
// another program holds the lock.
func lock(ctx context.Context, path string, waiting func()) (func(), error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("wait for the lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
