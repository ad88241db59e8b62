package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// rows are the rows of a test.
type rows struct {
	mu    sync.Mutex
	dead  []string
	named []string // keys that rows name
	err   error
	asked int
}

func (r *rows) Dead(_ context.Context, owners []string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(owners), func(o string) bool { return !slices.Contains(r.dead, o) }), r.err
}

// Orphans knows nothing of keys that begin with strange.
func (r *rows) Orphans(_ context.Context, keys []string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return slices.Contains(r.named, k) || strings.HasPrefix(k, "strange/") }), r.err
}

// share opens one directory for each owner.
func share(t *testing.T, owners ...string) (dirs []*Store, at string) {
	t.Helper()
	at = t.TempDir()
	for _, o := range owners {
		d, err := New(at, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		dirs = append(dirs, d)
	}
	return dirs, at
}

// all are the files of the directory, those under .tmp by their owners.
func all(t *testing.T, at string) string {
	t.Helper()
	var names []string
	if err := filepath.WalkDir(at, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(at, p)
		if owner, rest, ok := strings.Cut(name, mark); ok {
			if name = owner; strings.HasSuffix(rest, mark) {
				name += mark
			}
		}
		names = append(names, name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// drip gives a byte at each call of next, until end.
type drip struct{ bytes chan byte }

func (d drip) Read(p []byte) (int, error) {
	b, ok := <-d.bytes
	if !ok {
		return 0, io.EOF
	}
	p[0] = b
	return 1, nil
}

func sweep(t *testing.T, d *Store, r *rows, want int) {
	t.Helper()
	if n, err := d.Sweep(t.Context(), r); err != nil || n != want {
		t.Errorf("%d removed, %v; want %d", n, err, want)
	}
}

// Files that a process is writing, or about to commit, are left alone until it is dead; the
// next Sweep then removes them.
func TestSweepTellsTheLivingFromTheDead(t *testing.T) {
	dirs, at := share(t, "one", "two")
	one, two := dirs[0], dirs[1]
	r := &rows{}
	put(t, one, "kept", "x")
	r.named = append(r.named, "kept", "committed")
	leave(t, one, "committed", "x") // killed right behind the commit
	leave(t, one, "orphan", "x")    // and right before it
	slow := drip{make(chan byte)}
	done := make(chan error, 1)
	go func() {
		_, _, err := one.Put(t.Context(), "slow", slow, 10)
		done <- err
	}()
	slow.bytes <- 'a' // it has begun
	before := ".tmp/one .tmp/one~ .tmp/one~ committed kept orphan"
	for _, d := range dirs {
		sweep(t, d, r, 0)
		if n, err := d.Walk(t.Context(), r); err != nil || n != 0 {
			t.Errorf("a walk removed %d, %v", n, err)
		}
	}
	if got := all(t, at); got != before {
		t.Errorf("of the living: %s", got)
	}
	r.err = errors.New("away")
	if n, err := two.Sweep(t.Context(), r); err == nil || n != 0 {
		t.Errorf("%d removed, %v", n, err)
	}
	r.err, r.dead = nil, []string{"one"}
	sweep(t, two, r, 4) // two notes, an unfinished file, an orphan
	if got := all(t, at); got != "committed kept" {
		t.Errorf("of the dead: %s", got)
	}
	close(slow.bytes)
	if err := <-done; err == nil { // it was dead, and heard of it late
		t.Error("a Put whose file is gone says that it was stored")
	}
	if got := all(t, at); got != "committed kept" {
		t.Errorf("afterwards: %s", got)
	}
}

// Files without an owner are those of a Check that did not end.
func TestSweepOfFilesWithoutAnOwner(t *testing.T) {
	dirs, at := share(t, "one")
	for name, age := range map[string]time.Duration{"0123": young + time.Minute, "4567": 0} {
		p := filepath.Join(at, temporary, name)
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	sweep(t, dirs[0], &rows{}, 1)
	if got := all(t, at); got != ".tmp/4567" {
		t.Errorf("left: %s", got)
	}
}

// meanwhile calls a function between the steps of a Check.
type meanwhile struct {
	backend
	happens func()
}

func (m meanwhile) read(ctx context.Context, name string) (string, error) {
	m.happens()
	return m.backend.read(ctx, name)
}

// TestACheckBesideASweep: a process checks the store before it is a member, and svc doctor never is one. Processes that sweep meanwhile
// take it for dead, and leave its file alone.
func TestACheckBesideASweep(t *testing.T) {
	t.Parallel()
	dirs, at := share(t, "one", "two")
	swept := 0
	one := newStore(meanwhile{dirs[0].files, func() {
		swept++
		sweep(t, dirs[1], &rows{dead: []string{"one"}}, 0)
	}}, "one")
	if err := one.Check(t.Context()); err != nil || swept != 1 {
		t.Errorf("%v, %d sweeps meanwhile", err, swept)
	}
	if got := all(t, at); got != "" {
		t.Errorf("afterwards: %s", got)
	}
}

// TestANamedBlobIsInNoDoubt: what a committed row names is stored without a note, and stays when its owner dies.
func TestANamedBlobIsInNoDoubt(t *testing.T) {
	t.Parallel()
	dirs, at := share(t, "one", "two")
	d := &drip{make(chan byte)}
	put := make(chan error, 1)
	go func() {
		_, _, err := dirs[0].PutNamed(t.Context(), "named", d, 10)
		put <- err
	}()
	d.bytes <- 'x' // it is being read
	if got := all(t, at); got != ".tmp/one" {
		t.Fatal("before the end: ", got)
	}
	close(d.bytes)
	if err := <-put; err != nil {
		t.Fatal(err)
	}
	if _, err := dirs[1].Sweep(t.Context(), &rows{dead: []string{"one"}}); err != nil {
		t.Fatal(err)
	}
	if got := all(t, at); got != "named" {
		t.Fatal("in the end: ", got)
	}
}

// A commit of unknown outcome may become true for a while.
func TestDoubtsAreSettledLater(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprint(committed), func(t *testing.T) {
			dirs, at := share(t, "one")
			d, r := dirs[0], &rows{}
			leave(t, d, "x", "x")
			d.Settle("x", false)
			sweep(t, d, r, 0)
			if got := all(t, at); got != ".tmp/one~ x" {
				t.Errorf("at once: %s", got)
			}
			want, removed := "", 1
			if committed {
				r.named, want, removed = []string{"x"}, "x", 0
			}
			d.doubts[0].since = d.doubts[0].since.Add(-doubtful)
			sweep(t, d, r, removed)
			if got := all(t, at); got != want || len(d.doubts) != 0 {
				t.Errorf("later: %q", got)
			}
		})
	}
}

// Walk finds blobs without a note: their rows were deleted, or never restored.
func TestWalk(t *testing.T) {
	dirs, at := share(t, "one", "two")
	r := &rows{}
	old := time.Now().Add(-young - time.Minute)
	for i := range 2*walkPage + 5 {
		key := fmt.Sprintf("a/%d/%d", i%2, i)
		if err := os.MkdirAll(filepath.Join(at, filepath.Dir(key)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, key), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(at, key), old, old); err != nil {
			t.Fatal(err)
		}
		if i%5 > 0 {
			r.named = append(r.named, key)
		}
	}
	for _, key := range []string{"a/young", "a/noted", "strange/x"} {
		leave(t, dirs[1], key, "x")
		if key != "a/noted" {
			dirs[1].Settle(key, true)
		}
		if key != "a/young" {
			if err := os.Chtimes(filepath.Join(at, key), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	reader, _, err := dirs[0].Open(t.Context(), "a/0/0")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if n, err := dirs[0].Walk(t.Context(), r); err != nil || n != (2*walkPage+5)/5 {
		t.Fatalf("%d removed, %v", n, err)
	}
	for key, there := range map[string]bool{"a/0/0": false, "a/1/5": false, "a/1/1": true, "a/young": true, "a/noted": true, "strange/x": true} {
		if _, err := os.Stat(filepath.Join(at, key)); (err == nil) != there {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, err := io.ReadAll(reader); err != nil {
		t.Errorf("a reader of a removed blob: %v", err)
	}
	if r.asked > 10 {
		t.Errorf("asked %d times", r.asked)
	}
}

// Puts, walks and sweeps of several nodes at once: nothing is removed that is committed, or
// about to be.
func TestNothingIsRemovedBeforeItsRowIsCommitted(t *testing.T) {
	dirs, at := share(t, "one", "two")
	r := &rows{}
	ctx, cancel := context.WithCancel(t.Context())
	var sweeps, puts sync.WaitGroup
	for _, d := range dirs {
		sweeps.Go(func() {
			for ctx.Err() == nil {
				_, errSweep := d.Sweep(t.Context(), r)
				_, errWalk := d.Walk(t.Context(), r)
				if err := errors.Join(errSweep, errWalk); err != nil {
					t.Error(err)
				}
			}
		})
	}
	old := time.Now().Add(-time.Hour)
	for i, d := range dirs {
		puts.Go(func() {
			for n := range 50 {
				key := fmt.Sprintf("k/%d-%d", i, n)
				if _, _, err := d.Put(t.Context(), key, strings.NewReader("x"), 10); err != nil {
					t.Error(err)
				}
				if err := os.Chtimes(filepath.Join(at, key), old, old); err != nil { // a client that took long
					t.Error(err)
				}
				r.mu.Lock()
				r.named = append(r.named, key)
				r.mu.Unlock()
				d.Settle(key, true)
			}
		})
	}
	puts.Wait()
	cancel()
	sweeps.Wait()
	for _, key := range r.named {
		if _, err := os.Stat(filepath.Join(at, key)); err != nil {
			t.Error(err)
		}
	}
	if got := all(t, at); strings.Contains(got, ".tmp") {
		t.Errorf("left: %s", got)
	}
}
