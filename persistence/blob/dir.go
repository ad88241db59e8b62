package blob

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// dir keeps files in a directory of the machine, or of a file system that several machines
// mount.
type dir struct{ root *os.Root }

func openDir(at string) (*dir, error) {
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of files: %w", err)
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, fmt.Errorf("open the directory of files: %w", err)
	}
	if err := root.Mkdir(temporary, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		root.Close()
		return nil, fmt.Errorf("make the directory of unfinished files: %w", err)
	}
	return &dir{root}, nil
}

func (d *dir) close() error { return d.root.Close() }

func (d *dir) create(name string) (*os.File, error) {
	return d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

func (d *dir) discard(f *os.File, name string) {
	f.Close()
	d.root.Remove(name)
}

func (d *dir) publish(_ context.Context, f *os.File, name, key string, _ int64, _ [sha256.Size]byte) error {
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	parent := path.Dir(key)
	if err := d.makeParents(parent); err != nil {
		return err
	}
	if err := d.root.Rename(name, key); err != nil {
		return err
	}
	return d.sync(parent)
}

func (d *dir) open(_ context.Context, key string) (io.ReadCloser, int64, error) {
	f, err := d.root.Open(key)
	if err != nil {
		return nil, 0, missing(key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrNotFound
	}
	if err != nil {
		f.Close()
		return nil, 0, missing(key, err)
	}
	return f, info.Size(), nil
}

func (d *dir) remove(_ context.Context, name string) error {
	info, err := d.root.Lstat(name)
	if err == nil && info.IsDir() { // a prefix of other keys
		return nil
	}
	if err == nil {
		err = d.root.Remove(name)
	}
	if err != nil && !absent(err) {
		return err
	}
	return nil
}

// abandon has nothing to do: an unfinished file lies under .tmp.
func (d *dir) abandon(context.Context, string) error { return nil }

// write stores a note complete or not at all: it writes under the name without the mark.
func (d *dir) write(_ context.Context, name, content string) error {
	unfinished := strings.TrimSuffix(name, mark)
	f, err := d.create(unfinished)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && name != unfinished {
		err = d.root.Rename(unfinished, name)
	}
	if err == nil {
		err = d.sync(path.Dir(name))
	}
	if err != nil {
		d.root.Remove(unfinished)
	}
	return err
}

func (d *dir) read(_ context.Context, name string) (string, error) {
	content, err := d.root.ReadFile(name)
	return string(content), err
}

func (d *dir) stat(_ context.Context, name string) (info, error) {
	i, err := d.root.Lstat(name)
	if err == nil && !i.Mode().IsRegular() {
		err = ErrNotFound
	}
	if err != nil {
		return info{}, missing(name, err)
	}
	return info{name: name, size: i.Size(), modified: i.ModTime()}, nil
}

func (d *dir) name(_ context.Context, content string) error {
	unfinished := path.Join(temporary, content)
	if err := d.root.WriteFile(unfinished, []byte(content), 0o600); err != nil {
		return err
	}
	defer d.root.Remove(unfinished)
	// A link never replaces a file: of several concurrent callers one is first.
	if err := d.root.Link(unfinished, identity); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// list lists directories with names of keys, and .tmp if it is asked for.
func (d *dir) list(ctx context.Context, under string, page func([]info) error) error {
	f, err := d.root.Open(path.Join(".", under))
	if err != nil {
		if absent(err) {
			return nil
		}
		return fmt.Errorf("look for files: %w", err)
	}
	defer f.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := f.ReadDir(walkPage)
		var found []info
		for _, e := range entries {
			name := path.Join(under, e.Name())
			switch {
			case under != temporary && check(name) != nil: // not one of ours
			case e.IsDir():
				if err := d.list(ctx, name, page); err != nil {
					return err
				}
			case e.Type().IsRegular():
				i, err := e.Info()
				if err == nil { // otherwise it was just removed
					found = append(found, info{name: name, size: i.Size(), modified: i.ModTime()})
				}
			}
		}
		if len(found) > 0 {
			if err := page(found); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for files: %w", err)
		}
	}
}

// makeParents creates the directories of a key, each durably.
func (d *dir) makeParents(at string) error {
	if at == "." {
		return nil
	}
	if info, err := d.root.Stat(at); err == nil && info.IsDir() {
		return nil
	}
	above := path.Dir(at)
	if err := d.makeParents(above); err != nil {
		return err
	}
	if err := d.root.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.sync(above)
}

func (d *dir) sync(at string) error {
	f, err := d.root.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
