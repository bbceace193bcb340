// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKeyChangesWithEachInput(t *testing.T) {
	module := map[string]string{
		"go.mod": "module m\n", "go.sum": "", "main.go": "package main\n", "sub/data.txt": "1",
	}
	base := keyOf(t, module, "go1.26")
	if again := keyOf(t, module, "go1.26"); again != base {
		t.Errorf("equal inputs have the keys %s and %s", base, again)
	}
	if keyOf(t, module, "go1.27") == base {
		t.Error("another version of Go has the same key")
	}
	if keyOf(t, module, "go1", ".26") == base {
		t.Error("settings run into each other")
	}
	for _, test := range []struct {
		name, file, content string
		changes             bool
	}{
		{"go.mod edited", "go.mod", "module n\n", true},
		{"go.sum edited", "go.sum", "x", true},
		{"source edited", "main.go", "package main // x\n", true},
		{"source added", "other.go", "package main\n", true},
		{"embedded file edited", "sub/data.txt", "2", true},
		{"content moved to the next file", "main.go", "package main\nsub/data.txt", true},
		{"test added", "main_test.go", "package main\n", false},
		{"documentation added", "README.md", "x", false},
		{"hidden file added", ".swp", "x", false},
		{"nested module added", "nested/go.mod", "module x\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := map[string]string{test.file: test.content}
			for file, content := range module {
				if file != test.file {
					changed[file] = content
				}
			}
			if got := keyOf(t, changed, "go1.26") != base; got != test.changes {
				t.Errorf("key changed: %v, want %v", got, test.changes)
			}
		})
	}
}

func keyOf(t *testing.T, files map[string]string, settings ...string) string {
	t.Helper()
	dir := t.TempDir()
	for file, content := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	key, err := inputKey(dir, settings...)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
