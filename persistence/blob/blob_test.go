package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"agentsvc/persistence/blob/blobtest"
)

func open(t testing.TB) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "blobs")
	d, err := New(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, dir
}

func put(t *testing.T, d *Store, key, content string) {
	t.Helper()
	leave(t, d, key, content)
	d.Settle(key, true)
}

// leave puts a blob and does not commit its row.
func leave(t *testing.T, d *Store, key, content string) {
	t.Helper()
	if _, _, err := d.Put(t.Context(), key, strings.NewReader(content), 1<<20); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, d *Store, key string) string {
	t.Helper()
	f, size, err := d.Open(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != size {
		t.Errorf("%d bytes, said to be %d", len(b), size)
	}
	return string(b)
}

// unfinished lists what lies under .tmp.
func unfinished(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, temporary))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

const key = "browser-skills/0190aaaa/0190bbbb/3.jpg"

func TestWhatIsPutIsRead(t *testing.T) {
	d, dir := open(t)
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	size, sum, err := d.Put(t.Context(), key, iotest.HalfReader(bytes.NewReader(content)), int64(len(content)))
	if err != nil || size != int64(len(content)) || sum != sha256.Sum256(content) {
		t.Fatalf("%d bytes, %x, %v", size, sum, err)
	}
	d.Settle(key, true)
	if got := get(t, d, key); got != string(content) {
		t.Error("something else is read")
	}
	put(t, d, key, "replaced")
	if got := get(t, d, key); got != "replaced" {
		t.Errorf("got %q", got)
	}
	put(t, d, "empty", "")
	if got := get(t, d, "empty"); got != "" {
		t.Errorf("got %q", got)
	}
	if info, err := os.Stat(filepath.Join(dir, key)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if left := unfinished(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAFailedPutChangesNothing(t *testing.T) {
	d, dir := open(t)
	put(t, d, key, "before")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		ctx  context.Context
		key  string
		r    io.Reader
		max  int64
		want error
	}{
		{"too large by a byte", t.Context(), key, strings.NewReader("12345"), 4, ErrTooLarge},
		{"endless", t.Context(), key, endless{}, 1 << 20, ErrTooLarge},
		{"the reader breaks", t.Context(), key, io.MultiReader(strings.NewReader("1"), iotest.ErrReader(broken)), 10, broken},
		{"the context ends", cancelled, key, strings.NewReader("1"), 10, context.Canceled},
		{"no key", t.Context(), "../x", strings.NewReader("1"), 10, ErrKey},
		{"under a key that is a file", t.Context(), key + "/x", strings.NewReader("1"), 10, nil},
		{"over keys that it begins", t.Context(), "browser-skills", strings.NewReader("1"), 10, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := d.Put(tt.ctx, tt.key, tt.r, tt.max)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v", err)
			}
			if got := get(t, d, key); got != "before" {
				t.Errorf("the key holds %q", got)
			}
			if left := unfinished(t, dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestDelete(t *testing.T) {
	d, _ := open(t)
	put(t, d, key, "x")
	reader, _, err := d.Open(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for range 2 { // the second finds none
		if err := d.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := d.Open(t.Context(), key); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if b, err := io.ReadAll(reader); err != nil || string(b) != "x" {
		t.Errorf("a reader got %q, %v", b, err)
	}
	put(t, d, key, "x")
	if err := d.Delete(t.Context(), "browser-skills"); err != nil {
		t.Error(err)
	}
	if err := d.Delete(t.Context(), key+"/x"); err != nil {
		t.Error(err)
	}
	if get(t, d, key) != "x" {
		t.Error("the beginning of a key deletes the key")
	}
}

func TestWhatIsNoFileIsNotFound(t *testing.T) {
	d, _ := open(t)
	put(t, d, key, "x")
	for _, k := range []string{"never", "browser-skills/never", "browser-skills", key + "/x"} {
		if _, _, err := d.Open(t.Context(), k); !errors.Is(err, ErrNotFound) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", k, err)
		}
	}
}

func TestKeys(t *testing.T) {
	d, dir := open(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "/", "/x", "x/", "x//y", ".", "..", "../outside", "x/../../outside", "x/./y", ".tmp/x", ".hidden", "x/.y",
		outside, `x\y`, `..\outside`, "x\x00y", "x y", "x:y", "ä", "x\n", "~", "%2e%2e/outside", strings.Repeat("x", 201), strings.Repeat("x/", 300) + "x"} {
		if _, _, err := d.Put(t.Context(), bad, strings.NewReader("x"), 10); !errors.Is(err, ErrKey) {
			t.Errorf("Put %q: %v", bad, err)
		}
		if _, _, err := d.Open(t.Context(), bad); !errors.Is(err, ErrKey) {
			t.Errorf("Open %q: %v", bad, err)
		}
		if err := d.Delete(t.Context(), bad); !errors.Is(err, ErrKey) {
			t.Errorf("Delete %q: %v", bad, err)
		}
	}
	for _, good := range []string{"x", "y/x", "X-1_2.tar.gz", "a..b", strings.Repeat("x", 200)} {
		if _, _, err := d.Put(t.Context(), good, strings.NewReader("x"), 10); err != nil {
			t.Errorf("Put %q: %v", good, err)
		}
	}
}

func TestALinkThatLeadsOutIsNotFollowed(t *testing.T) {
	d, dir := open(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "x"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if f, _, err := d.Open(t.Context(), "link/x"); err == nil {
		f.Close()
		t.Error("it is read")
	}
	if _, _, err := d.Put(t.Context(), "link/y", strings.NewReader("y"), 10); err == nil {
		t.Error("it is written")
	}
	if err := d.Delete(t.Context(), "link/x"); err == nil {
		t.Error("it is deleted")
	}
	if b, err := os.ReadFile(filepath.Join(outside, "x")); err != nil || string(b) != "secret" {
		t.Errorf("outside: %q, %v", b, err)
	}
}

func TestConcurrentPutsLeaveOneOfThemWhole(t *testing.T) {
	d, dir := open(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			content := strings.Repeat(string(rune('a'+i)), 100_000)
			if _, _, err := d.Put(t.Context(), key, strings.NewReader(content), 1<<20); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	d.Settle(key, true)
	got := get(t, d, key)
	if len(got) != 100_000 || strings.Count(got, got[:1]) != len(got) {
		t.Errorf("%d bytes, mixed", len(got))
	}
	if left := unfinished(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func FuzzKey(f *testing.F) {
	for _, s := range []string{key, "../x", "a/b", ".tmp/x", "a//b", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, k string) {
		if check(k) != nil {
			return
		}
		if !filepath.IsLocal(k) || filepath.Clean(k) != k || strings.HasPrefix(k, temporary) {
			t.Fatalf("%q is accepted", k)
		}
	})
}

// A directory has one name, for every process.
func TestID(t *testing.T) {
	at := t.TempDir()
	names := make([]string, 8)
	var wg sync.WaitGroup
	for i := range names {
		wg.Go(func() {
			d, err := New(at, "one")
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			if names[i], err = d.ID(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, n := range names {
		if n == "" || n != names[0] {
			t.Errorf("%q", names)
		}
	}
	other, err := New(t.TempDir(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if n, err := other.ID(t.Context()); err != nil || n == names[0] {
		t.Errorf("%q, %v", n, err)
	}
}

// A look at a file compares what the store knows without reading it: its size, and in a bucket its checksum.
func TestMatches(t *testing.T) {
	t.Parallel()
	dir, _ := open(t)
	bucket := remote(t, blobtest.New(t).URL("looks"), "one")
	right, wrong := sha256.Sum256([]byte("hello")), sha256.Sum256([]byte("other"))
	for name, s := range map[string]*Store{"a directory": dir, "a bucket": bucket} {
		put(t, s, "attachments/a", "hello")
		knows := error(nil)
		if s == bucket {
			knows = ErrCorrupt
		}
		for _, tt := range []struct {
			key  string
			size int64
			sum  [sha256.Size]byte
			want error
		}{{"attachments/a", 5, right, nil}, {"attachments/a", 4, right, ErrCorrupt}, {"attachments/a", 5, wrong, knows}, {"attachments/b", 5, right, ErrNotFound}, {"../a", 5, right, ErrKey}} {
			if err := s.Matches(t.Context(), tt.key, tt.size, tt.sum); !errors.Is(err, tt.want) {
				t.Errorf("%s: %s of %d bytes: %v, want %v", name, tt.key, tt.size, err, tt.want)
			}
		}
	}
}
