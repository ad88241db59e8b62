// Package blob stores files: attachments, artifacts, screenshots. They lie in a directory of the
// machine (dir.go), or in a bucket of an S3-compatible server that several machines share
// (bucket.go).
//
// A Store owns its directory, or its prefix in the bucket. A blob appears under its key complete
// and durable, or not at all. Keys cannot lead out of it, whatever is in it. There is no index and
// no lock: the database says who may read which key, and of two concurrent Puts to one key one
// wins.
//
// Several processes may share a store. Each writes under .tmp, under names that carry its own:
// its unfinished files, and, for each blob whose row may not be committed yet, a note with the
// blob's key. So Sweep can distinguish the leftovers of dead processes from blobs that living
// ones are about to commit, without clocks and without reading all blobs.
//
// A blob is written to a local file first, so a slow client holds neither memory nor a connection
// to the server, and a blob that is too large or cut short never reaches the server. In a bucket
// each blob carries its SHA-256, which is checked when it is read.
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
	// ErrUnavailable: the server of the files cannot serve now. A Put may still take effect.
	ErrUnavailable = errors.New("the store of files is not available")
	// ErrCorrupt: the content that was read is not the content that was stored.
	ErrCorrupt = errors.New("the file is damaged: its content does not match its checksum")
)

const (
	temporary  = ".tmp" // no key begins with a dot
	identity   = ".id"
	maxKey     = 512
	maxSegment = 200
)

// backend is a place that keeps files under names: keys, names under .tmp, and .id.
type backend interface {
	// create returns an empty local file for the content of a blob. name is under .tmp.
	create(name string) (*os.File, error)
	// discard removes a created file that is not published.
	discard(f *os.File, name string)
	// publish stores the content of a created file under key, completely and durably. After an
	// error the caller discards the file. After ErrUnavailable it may still take effect.
	publish(ctx context.Context, f *os.File, name, key string, size int64, sum [sha256.Size]byte) error
	// open returns the content of key and its size. The content stays readable after ctx.
	open(ctx context.Context, key string) (io.ReadCloser, int64, error)
	// remove removes a file, if there is one.
	remove(ctx context.Context, name string) error
	// abandon removes what unfinished calls of publish left of a key.
	abandon(ctx context.Context, key string) error
	// write stores a small file durably.
	write(ctx context.Context, name, content string) error
	// read returns the content of a small file.
	read(ctx context.Context, name string) (string, error)
	// stat describes a file. ErrNotFound if there is none.
	stat(ctx context.Context, name string) (info, error)
	// list calls page with the files below a directory, in batches; "" lists all keys.
	list(ctx context.Context, under string, page func([]info) error) error
	// name creates identity with this content unless it exists.
	name(ctx context.Context, content string) error
	close() error
}

// info describes a stored file.
type info struct {
	name     string
	size     int64
	modified time.Time          // by the clock of the store
	sum      *[sha256.Size]byte // nil if the store does not know it
}

// Store is a store of blobs. It is safe for concurrent use, by several processes too.
type Store struct {
	files backend
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

// New opens a store in a directory and creates the directory if it is missing. owner names this
// process among all that share the store, in letters, digits and dashes.
func New(at, owner string) (*Store, error) {
	d, err := openDir(at)
	if err != nil {
		return nil, err
	}
	return newStore(d, owner), nil
}

// Open opens the store at a location. A bucket is checked: an error says what is wrong with the
// address, the credentials or their rights. spool is a local directory for uploads to a bucket in
// flight; it is created if it is missing. A caller that stores nothing gives "".
func Open(ctx context.Context, at Location, spool, owner string) (*Store, error) {
	if at.Dir != "" {
		return New(at.Dir, owner)
	}
	b, err := openBucket(at, spool)
	if err != nil {
		return nil, err
	}
	s := newStore(b, owner)
	if err := s.Check(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func newStore(files backend, owner string) *Store {
	return &Store{files: files, owner: owner, writing: map[string]bool{}, notes: map[string][]string{}}
}

// Check writes, reads, lists and removes a small file, and returns the first error. The file has no
// owner: this process may be no member, or not yet, and a Sweep of another one must leave it alone.
func (s *Store) Check(ctx context.Context) error {
	name := path.Join(temporary, rand.Text())
	if err := s.files.write(ctx, name, "x"); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	if _, err := s.files.read(ctx, name); err != nil {
		return fmt.Errorf("read a file: %w", err)
	}
	if err := s.files.list(ctx, temporary, func([]info) error { return nil }); err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	if err := s.files.abandon(ctx, name); err != nil {
		return fmt.Errorf("list unfinished uploads: %w", err)
	}
	if err := s.files.remove(ctx, name); err != nil {
		return fmt.Errorf("remove a file: %w", err)
	}
	return nil
}

// Name returns the name of the store, and "" if it has none yet.
func (s *Store) Name(ctx context.Context) (string, error) {
	name, err := s.files.read(ctx, identity)
	switch {
	case absent(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the name of the store of files: %w", err)
	}
	return name, nil
}

// ID returns the name of the store, the same for every process; the first call creates it.
func (s *Store) ID(ctx context.Context) (string, error) {
	if name, err := s.Name(ctx); name != "" || err != nil {
		return name, err
	}
	var random [16]byte
	rand.Read(random[:])
	if err := s.files.name(ctx, hex.EncodeToString(random[:])); err != nil {
		return "", fmt.Errorf("name the store of files: %w", err)
	}
	return s.files.read(ctx, identity)
}

// Unused reports whether the store has neither a name nor a file: no process has served from it.
func (s *Store) Unused(ctx context.Context) (bool, error) {
	if name, err := s.Name(ctx); name != "" || err != nil {
		return false, err
	}
	used := errors.New("it has a file")
	switch err := s.files.list(ctx, "", func([]info) error { return used }); {
	case errors.Is(err, used):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list files: %w", err)
	}
	return true, nil
}

// Close releases the store; no other call may follow.
func (s *Store) Close() error { return s.files.close() }

// Put stores the content of r under key, replacing any previous content, and returns its size
// and SHA-256. More than max bytes are ErrTooLarge. After any error but ErrUnavailable the key
// has its previous content; after ErrUnavailable a later Sweep checks. After a success the caller
// commits the row that names the key, and calls Settle.
func (s *Store) Put(ctx context.Context, key string, r io.Reader, max int64) (size int64, sum [sha256.Size]byte, err error) {
	return s.put(ctx, key, r, max, true)
}

// PutNamed is Put for a key that a committed row names already. Nothing is in doubt, so it writes no note, and
// Settle is not called.
func (s *Store) PutNamed(ctx context.Context, key string, r io.Reader, max int64) (size int64, sum [sha256.Size]byte, err error) {
	return s.put(ctx, key, r, max, false)
}

func (s *Store) put(ctx context.Context, key string, r io.Reader, max int64, doubtful bool) (size int64, sum [sha256.Size]byte, err error) {
	defer observe("put", time.Now(), &err)
	if err := check(key); err != nil {
		return 0, sum, err
	}
	c, err := s.collect(ctx, r, max)
	if err != nil {
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	defer s.done(c.name)
	if doubtful {
		err = s.note(ctx, key) // before the blob is visible
	}
	if err == nil {
		if err = s.files.publish(ctx, c.f, c.name, key, c.size, c.sum); err != nil && doubtful {
			s.Settle(key, !errors.Is(err, ErrUnavailable))
		}
	}
	if err != nil {
		s.files.discard(c.f, c.name)
		return 0, sum, fmt.Errorf("store %s: %w", key, err)
	}
	stored.Add(float64(c.size))
	return c.size, c.sum, nil
}

// collected is the whole content of a blob in a local file.
type collected struct {
	f    *os.File
	name string // under .tmp
	size int64
	sum  [sha256.Size]byte
}

// collect reads r into a local file. The caller calls done with its name.
func (s *Store) collect(ctx context.Context, r io.Reader, max int64) (c collected, err error) {
	c.name = s.begin()
	if c.f, err = s.files.create(c.name); err != nil {
		s.done(c.name)
		return c, err
	}
	hash := sha256.New()
	c.size, err = io.Copy(io.MultiWriter(c.f, hash), io.LimitReader(reader{ctx, r}, max+1))
	if err == nil && c.size > max {
		err = ErrTooLarge
	}
	if err != nil {
		s.files.discard(c.f, c.name)
		s.done(c.name)
		return c, err
	}
	c.sum = [sha256.Size]byte(hash.Sum(nil))
	return c, nil
}

// Open returns the file and its size. The caller closes it; it stays readable if it is
// replaced or deleted in the meantime. A read of a damaged file returns ErrCorrupt before its
// last byte, where the store knows the checksum.
func (s *Store) Open(ctx context.Context, key string) (file io.ReadCloser, size int64, err error) {
	defer observe("open", time.Now(), &err)
	if err := check(key); err != nil {
		return nil, 0, err
	}
	return s.files.open(ctx, key)
}

// Matches returns nil if there is a file of that key and size. It is ErrNotFound if there is none, and ErrCorrupt if
// it has another size, or another checksum where the store knows it. The content is not read.
func (s *Store) Matches(ctx context.Context, key string, size int64, sum [sha256.Size]byte) error {
	if err := check(key); err != nil {
		return err
	}
	there, err := s.files.stat(ctx, key)
	if err != nil {
		return err
	}
	if there.size != size || there.sum != nil && *there.sum != sum {
		return fmt.Errorf("%w: %s", ErrCorrupt, key)
	}
	return nil
}

// Delete removes the file of that key, if there is one.
func (s *Store) Delete(ctx context.Context, key string) (err error) {
	defer observe("delete", time.Now(), &err)
	if err := check(key); err != nil {
		return err
	}
	if err := s.files.remove(ctx, key); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
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
