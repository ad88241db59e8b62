// Package blob stores files in a directory of the machine: attachments, artifacts,
// screenshots.
//
// It owns the directory. A blob appears under its key complete and durable, or not at all.
// Keys cannot lead out of the directory, whatever is in it. There is no index and no lock:
// the database says who may read which key, and of two concurrent Puts to one key one wins.
//
// Several processes may share the directory. Each writes under .tmp, in files that carry its
// name: its unfinished files, and, for each blob whose row may not be committed yet, a note
// with the blob's key. So Sweep can distinguish the leftovers of dead processes from blobs
// that living ones are about to commit, without clocks and without reading all blobs.
package blob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Errors that callers distinguish.
var (
	ErrTooLarge = errors.New("the file is larger than allowed")
	ErrNotFound = fmt.Errorf("there is no such file: %w", fs.ErrNotExist)
	ErrKey      = errors.New("not a key of a file")
)

const (
	temporary  = ".tmp" // no key begins with a dot
	identity   = ".id"
	maxKey     = 512
	maxSegment = 200
)

// Dir is a directory of blobs. It is safe for concurrent use, by several
// processes too.
type Dir struct {
	root  *os.Root
	owner string

	mu      sync.Mutex          // guards the fields below
	writing map[string]bool     // files under .tmp that Puts are writing
	notes   map[string][]string // by key: notes of blobs whose row may not be committed yet
	doubts  []doubt             // blobs whose commits have an unknown outcome
}

// doubt is a blob whose row may or may not be committed.
type doubt struct {
	key   string
	since time.Time
}

// New opens the directory and creates it if it is missing. owner names this process among all
// that share the directory, in letters, digits and dashes.
func New(dir, owner string) (*Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of files: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of files: %w", err)
	}
	if err := root.Mkdir(temporary, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		root.Close()
		return nil, fmt.Errorf("make the directory of unfinished files: %w", err)
	}
	return &Dir{root: root, owner: owner, writing: map[string]bool{}, notes: map[string][]string{}}, nil
}

// ID returns the name of the directory, the same for every process; the first call creates
// it.
func (d *Dir) ID() (string, error) {
	name, err := d.root.ReadFile(identity)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return string(name), err
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	text := hex.EncodeToString(random[:])
	unfinished := path.Join(temporary, text)
	if err := d.root.WriteFile(unfinished, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("name the directory of files: %w", err)
	}
	defer d.root.Remove(unfinished)
	// A link never replaces a file: of several concurrent callers one is first.
	if err := d.root.Link(unfinished, identity); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("name the directory of files: %w", err)
	}
	name, err = d.root.ReadFile(identity)
	return string(name), err
}

// Close releases the directory; no other call may follow.
func (d *Dir) Close() error { return d.root.Close() }

// Put stores the content of r under key, replacing any previous content, and returns its size
// and SHA-256. More than max bytes are ErrTooLarge; after any error the key has its previous
// content. After a success the caller commits the row that names the key, and calls Settle.
func (d *Dir) Put(ctx context.Context, key string, r io.Reader, max int64) (size int64, sum [sha256.Size]byte, err error) {
	if err := check(key); err != nil {
		return 0, sum, err
	}
	unfinished, err := d.begin()
	if err != nil {
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	defer func() {
		if err != nil {
			d.root.Remove(unfinished)
		}
		d.done(unfinished)
	}()
	f, err := d.root.OpenFile(unfinished, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	hash := sha256.New()
	size, err = io.Copy(io.MultiWriter(f, hash), io.LimitReader(reader{ctx, r}, max+1))
	if err == nil && size > max {
		err = ErrTooLarge
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	parent := path.Dir(key)
	if err := d.makeParents(parent); err != nil {
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	if err := d.note(key); err != nil { // before the blob is visible
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	err = d.root.Rename(unfinished, key)
	if err == nil {
		err = d.sync(parent)
	}
	if err != nil {
		d.Settle(key, true)
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	return size, [sha256.Size]byte(hash.Sum(nil)), nil
}

// Open returns the file and its size. The caller closes it; it stays readable if it is
// replaced or deleted in the meantime.
func (d *Dir) Open(key string) (file io.ReadSeekCloser, size int64, err error) {
	if err := check(key); err != nil {
		return nil, 0, err
	}
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

// Delete removes the file of that key, if there is one.
func (d *Dir) Delete(key string) error {
	if err := check(key); err != nil {
		return err
	}
	info, err := d.root.Lstat(key)
	if err == nil && info.IsDir() { // a prefix of other keys
		return nil
	}
	if err == nil {
		err = d.root.Remove(key)
	}
	if err != nil && !absent(err) {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

// makeParents creates the directories of a key, each durably.
func (d *Dir) makeParents(dir string) error {
	if dir == "." {
		return nil
	}
	if info, err := d.root.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	above := path.Dir(dir)
	if err := d.makeParents(above); err != nil {
		return err
	}
	if err := d.root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.sync(above)
}

func (d *Dir) sync(dir string) error {
	f, err := d.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// check accepts segments of letters, digits, dot, dash and underscore, joined by
// slashes, none of which begins with a dot.
func check(key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("%w: %d bytes", ErrKey, len(key))
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment[0] == '.' || len(segment) > maxSegment {
			return fmt.Errorf("%w: %q", ErrKey, key)
		}
		for _, c := range []byte(segment) {
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_':
			default:
				return fmt.Errorf("%w: %q", ErrKey, key)
			}
		}
	}
	return nil
}

func missing(key string, err error) error {
	if absent(err) {
		return fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	return fmt.Errorf("open %s: %w", key, err)
}

// absent reports whether a path does not exist, or leads through a file.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, ErrNotFound)
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
