package vault

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrKey is returned for text that is not a key. No error quotes the text.
var ErrKey = errors.New("not a key")

// ParseKey parses a key: 32 bytes in standard base64, as `openssl rand -base64 32` prints
// them.
func ParseKey(text string) (Secret32, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return Secret32{}, fmt.Errorf("%w: it is empty, want 32 bytes in base64", ErrKey)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return Secret32{}, fmt.Errorf("%w: it is not standard base64 with padding", ErrKey)
	}
	if len(b) != 32 {
		return Secret32{}, fmt.Errorf("%w: it has %d bytes, want 32", ErrKey, len(b))
	}
	key := NewSecret32([32]byte(b))
	if key == (Secret32{}) {
		return Secret32{}, fmt.Errorf("%w: all of its bytes are zero", ErrKey)
	}
	return key, nil
}

// ParseKeys parses keys separated by commas; the list may be empty.
func ParseKeys(list string) ([]Secret32, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var keys []Secret32
	for i, text := range strings.Split(list, ",") {
		key, err := ParseKey(text)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// KeyFile returns the path of a development installation's master key in its data directory.
func KeyFile(dir string) string { return filepath.Join(dir, "master.key") }

// Exists reports whether dir holds a file at the master key's path, valid or not: an existing
// file is never replaced.
func Exists(dir string) bool {
	_, err := os.Lstat(KeyFile(dir))
	return !errors.Is(err, fs.ErrNotExist)
}

// Load reads the master key of a development installation from dir.
func Load(dir string) (Secret32, error) { return loadKey(KeyFile(dir)) }

// LoadOrCreate reads the master key of a development installation from dir, and creates it
// the first time. Concurrent processes agree on one key.
func LoadOrCreate(dir string) (Secret32, error) {
	path := KeyFile(dir)
	key, err := loadKey(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := createKey(dir, path); err != nil {
		return Secret32{}, fmt.Errorf("make a master key: %w", err)
	}
	return loadKey(path)
}

func loadKey(path string) (Secret32, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Secret32{}, fmt.Errorf("read the master key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Secret32{}, fmt.Errorf("others may read the master key %s: run chmod 600 on it", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Secret32{}, fmt.Errorf("read the master key: %w", err)
	}
	key, err := ParseKey(string(text))
	if err != nil {
		return Secret32{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// createKey creates a new key at path unless one exists: a link never replaces a file.
func createKey(dir, path string) error {
	// Other users may pass through the data directory: the private Postgres runs under
	// another user.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	var key [32]byte
	rand.Read(key[:])
	f, err := os.CreateTemp(dir, ".master.key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(key[:]) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
