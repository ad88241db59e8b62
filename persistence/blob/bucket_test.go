package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/minio/minio-go/v7"

	"agentsvc/persistence/blob/blobtest"
	"agentsvc/schemas/testkit"
)

// at parses a URL without credentials in the environment.
func at(t testing.TB, url string) Location {
	t.Helper()
	l, err := ParseLocation(url, Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A directory of uploads that cannot be written is found when the store is opened, not by the first upload. (/proc/self is
// a directory in which no user can make a file.)
func TestASpoolThatCannotBeWrittenIsRefused(t *testing.T) {
	_, err := Open(t.Context(), at(t, "s3://key:secret@bucket?endpoint=http://127.0.0.1:1"), "/proc/self", "x")
	if err == nil || !strings.Contains(err.Error(), "/proc/self") || !strings.Contains(err.Error(), "uploads in flight") || errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func remote(t testing.TB, url, owner string) *Store {
	t.Helper()
	s, err := Open(t.Context(), at(t, url), filepath.Join(t.TempDir(), "spool"), owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(s.files.(*bucket).spool); err != nil || len(left) != 0 {
			t.Errorf("left in the spool: %v, %v", left, err)
		}
		s.Close()
	})
	return s
}

// port returns the port of an address, as a URL's parameter has it.
func port(addr string) string {
	_, p, _ := strings.Cut(addr, ":")
	return "%3A" + p
}

// objects are the names of all files of a store, those under .tmp by their owners.
func objects(t *testing.T, s *Store) string {
	t.Helper()
	var names []string
	for _, under := range []string{temporary, ""} {
		if err := s.files.list(t.Context(), under, func(page []info) error {
			for _, f := range page {
				name := f.name
				if owner, rest, ok := strings.Cut(name, mark); ok {
					if name = owner; strings.HasSuffix(rest, mark) {
						name += mark
					}
				}
				names = append(names, name)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// parts counts the unfinished multipart uploads of the server.
func parts(t *testing.T, s *Store) (n int) {
	t.Helper()
	b := s.files.(*bucket)
	for u := range b.core.ListIncompleteUploads(t.Context(), b.at.bucket, b.at.prefix, true) {
		if u.Err != nil {
			t.Fatal(u.Err)
		}
		n++
	}
	return n
}

// large is more than what is sent in one piece.
var large = func() []byte {
	content := make([]byte, 37<<20)
	rand.NewChaCha8([32]byte{1}).Read(content)
	return content
}()

func TestWhatIsPutIntoABucketIsRead(t *testing.T) {
	t.Parallel()
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		putAndGet(t, remote(t, blobtest.New(t).URL("a/b"), "one"))
	})
	t.Run("https", func(t *testing.T) { // uploads differ: checksums follow the content
		t.Parallel()
		server, authorities := blobtest.NewTLS(t)
		b, err := openBucket(at(t, server.URL("a/b")), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(b, "one")
		defer s.Close()
		if err := s.Check(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("the server's certificate is not checked: %v", err)
		}
		b.conns.TLSClientConfig = &tls.Config{RootCAs: authorities}
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		putAndGet(t, s)
	})
}

func putAndGet(t *testing.T, s *Store) {
	t.Helper()
	small := bytes.Repeat([]byte("0123456789"), 10_000)
	for _, content := range [][]byte{small, {}, large, []byte("replaced")} {
		size, sum, err := s.Put(t.Context(), key, iotest.HalfReader(bytes.NewReader(content)), int64(len(content)))
		if err != nil || size != int64(len(content)) || sum != sha256.Sum256(content) {
			t.Fatalf("%d bytes, %x, %v", size, sum, err)
		}
		s.Settle(key, true)
		if got := get(t, s, key); got != string(content) {
			t.Errorf("something else than these %d bytes is read", len(content))
		}
	}
	if got := objects(t, s); got != key || parts(t, s) != 0 {
		t.Errorf("stored: %s", got)
	}
}

func TestAFailedPutLeavesABucketAsItWas(t *testing.T) {
	t.Parallel()
	s := remote(t, blobtest.New(t).URL(""), "one")
	put(t, s, key, "before")
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
		{"endless", t.Context(), key, endless{}, 20 << 20, ErrTooLarge},
		{"the reader breaks", t.Context(), key, io.MultiReader(bytes.NewReader(large), iotest.ErrReader(broken)), 100 << 20, broken},
		{"the context ends", cancelled, key, strings.NewReader("1"), 10, context.Canceled},
		{"no key", t.Context(), "../x", strings.NewReader("1"), 10, ErrKey},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := s.Put(tt.ctx, tt.key, tt.r, tt.max); !errors.Is(err, tt.want) {
				t.Errorf("got %v", err)
			}
			if got := get(t, s, key); got != "before" {
				t.Errorf("the key holds %q", got)
			}
			if got := objects(t, s); got != key || parts(t, s) != 0 {
				t.Errorf("stored: %s", got)
			}
		})
	}
}

func TestDeleteInABucket(t *testing.T) {
	t.Parallel()
	s := remote(t, blobtest.New(t).URL("a"), "one")
	put(t, s, key, "x")
	for range 2 { // the second finds none
		if err := s.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Open(t.Context(), key); !errors.Is(err, ErrNotFound) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
	for _, bad := range []string{"../x", ".tmp/x", "x//y", ""} {
		if err := s.Delete(t.Context(), bad); !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", bad, err)
		}
		if _, _, err := s.Open(t.Context(), bad); !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A prefix of a bucket has one name, for every process, and holds nothing of other prefixes.
func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	names := make([]string, 8)
	var wg sync.WaitGroup
	for i := range names {
		s := remote(t, server.URL("a"), fmt.Sprint("owner", i))
		wg.Go(func() {
			var err error
			if names[i], err = s.ID(t.Context()); err != nil {
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
	a, b, whole := remote(t, server.URL("a"), "one"), remote(t, server.URL("ab"), "two"), remote(t, server.URL(""), "three")
	if n, err := b.ID(t.Context()); err != nil || n == names[0] {
		t.Errorf("%q, %v", n, err)
	}
	put(t, a, "x", "of a")
	put(t, b, "x", "of ab")
	if get(t, a, "x") != "of a" || get(t, b, "x") != "of ab" || get(t, whole, "ab/x") != "of ab" {
		t.Error("prefixes are mixed")
	}
	if got := objects(t, a); got != "x" {
		t.Errorf("of a: %s", got)
	}
}

// An object that was changed at the server is not delivered as a whole.
func TestADamagedObjectIsNoticed(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	s := remote(t, server.URL(""), "one")
	put(t, s, key, "0123456789")
	f, err := os.OpenFile(filepath.Join(server.Dir, key), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 3); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for name, wrap := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "in bytes": iotest.OneByteReader} {
		r, size, err := s.Open(t.Context(), key)
		if err != nil || size != 10 {
			t.Fatal(size, err)
		}
		if got, err := io.ReadAll(wrap(r)); !errors.Is(err, ErrCorrupt) || len(got) >= 10 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		r.Close()
	}
}

// Memory does not grow with the size of a blob.
func TestALargeBlobTakesLittleMemory(t *testing.T) {
	s := remote(t, blobtest.New(t).URL(""), "one")
	allocated := func(work func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		work()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if n := allocated(func() {
		if _, _, err := s.Put(t.Context(), key, bytes.NewReader(large), 100<<20); err != nil {
			t.Fatal(err)
		}
	}); n > 6<<20 {
		t.Errorf("a Put of %d bytes allocated %d", len(large), n)
	}
	s.Settle(key, true)
	if n := allocated(func() {
		r, _, err := s.Open(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
	}); n > 2<<20 {
		t.Errorf("reading %d bytes allocated %d", len(large), n)
	}
}

// The same story as for a directory: what the living work on stays, and what the dead left goes.
func TestSweepOfABucket(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	one, two := remote(t, server.URL("p"), "one"), remote(t, server.URL("p"), "two")
	r := &rows{}
	put(t, one, "kept", "x")
	r.named = append(r.named, "kept", "committed")
	leave(t, one, "committed", "x") // killed right behind the commit
	leave(t, one, "orphan", "x")    // and right before it
	if err := one.note(t.Context(), "cut"); err != nil {
		t.Fatal(err)
	}
	b := one.files.(*bucket) // and in the middle of a large upload
	if _, err := b.core.NewMultipartUpload(t.Context(), b.at.bucket, b.at.prefix+"cut", minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{one, two} {
		sweep(t, s, r, 0)
		if n, err := s.Walk(t.Context(), r); err != nil || n != 0 {
			t.Errorf("a walk removed %d, %v", n, err)
		}
	}
	if got := objects(t, two); got != ".tmp/one~ .tmp/one~ .tmp/one~ committed kept orphan" || parts(t, two) != 1 {
		t.Errorf("of the living: %s, %d uploads", got, parts(t, two))
	}
	r.dead = []string{"one"}
	sweep(t, two, r, 5) // three notes, an orphan, and what never was under its key
	if got := objects(t, two); got != "committed kept" || parts(t, two) != 0 {
		t.Errorf("of the dead: %s, %d uploads", got, parts(t, two))
	}
}

// A commit of unknown outcome is checked later, also one after an upload of unknown outcome.
func TestDoubtsOfABucket(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	s, r := remote(t, server.URL(""), "one"), &rows{named: []string{"committed"}}
	for _, key := range []string{"committed", "not"} {
		leave(t, s, key, "x")
		s.Settle(key, false)
	}
	sweep(t, s, r, 0)
	for i := range s.doubts {
		s.doubts[i].since = s.doubts[i].since.Add(-doubtful)
	}
	sweep(t, s, r, 1)
	if got := objects(t, s); got != "committed" || len(s.doubts) != 0 {
		t.Errorf("later: %q", got)
	}
}

func TestWalkOfABucket(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	one, two := remote(t, server.URL(""), "one"), remote(t, server.URL(""), "two")
	r := &rows{}
	old := time.Now().Add(-young - time.Minute)
	age := func(key string) {
		if err := os.Chtimes(filepath.Join(server.Dir, key), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for i := range walkPage + 5 { // as a restored copy
		key := fmt.Sprintf("a/%d/%d", i%2, i)
		if err := os.MkdirAll(filepath.Join(server.Dir, filepath.Dir(key)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(server.Dir, key), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		age(key)
		if i%5 > 0 {
			r.named = append(r.named, key)
		}
	}
	for _, key := range []string{"a/young", "a/noted", "strange/x"} {
		leave(t, two, key, "x")
		if key != "a/noted" {
			two.Settle(key, true)
		}
		if key != "a/young" {
			age(key)
		}
	}
	if n, err := one.Walk(t.Context(), r); err != nil || n != (walkPage+5)/5 {
		t.Fatalf("%d removed, %v", n, err)
	}
	for key, there := range map[string]bool{"a/0/0": false, "a/1/5": false, "a/1/1": true, "a/young": true, "a/noted": true, "strange/x": true} {
		if _, err := one.files.stat(t.Context(), key); (err == nil) != there {
			t.Errorf("%s: %v", key, err)
		}
	}
	if r.asked > 10 {
		t.Errorf("asked %d times", r.asked)
	}
}

// While the server is away every call says so soon, and when it is back nothing is lost or half
// there.
func TestTheServerGoesAndComes(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	s, r := remote(t, server.URL(""), "one"), &rows{named: []string{"before"}}
	put(t, s, "before", "x")
	server.Kill()
	for name, call := range map[string]func() error{
		"put":    func() error { _, _, err := s.Put(t.Context(), "while", strings.NewReader("x"), 10); return err },
		"open":   func() error { _, _, err := s.Open(t.Context(), "before"); return err },
		"delete": func() error { return s.Delete(t.Context(), "before") },
		"sweep":  func() error { _, err := s.Sweep(t.Context(), r); return err },
		"walk":   func() error { _, err := s.Walk(t.Context(), r); return err },
		"id":     func() error { _, err := s.ID(t.Context()); return err },
	} {
		if err := call(); !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), blobtest.Secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
	server.Start()
	if got := get(t, s, "before"); got != "x" {
		t.Errorf("read %q", got)
	}
	put(t, s, "after", "y")
	if got := objects(t, s); got != "after before" {
		t.Errorf("stored: %s", got)
	}
}

// faltering lets a number of bytes through to a server, and then calls cut.
type faltering struct {
	net.Listener
	to    string
	after int64
	cut   func()
}

func (f *faltering) serve() {
	var seen int64
	var mu sync.Mutex
	for {
		c, err := f.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			up, err := net.Dial("tcp", f.to)
			if err != nil {
				return
			}
			defer up.Close()
			go func() { _, _ = io.Copy(c, up); c.Close() }()
			for buf := make([]byte, 32<<10); ; {
				n, err := c.Read(buf)
				mu.Lock()
				before := seen
				seen += int64(n)
				over := before < f.after && seen >= f.after
				mu.Unlock()
				if over {
					f.cut()
				}
				if _, failed := up.Write(buf[:n]); err != nil || failed != nil {
					return
				}
			}
		}()
	}
}

// The server is killed in the middle of a large upload. What it has of it goes later.
func TestTheServerIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go (&faltering{Listener: ln, to: server.Addr, after: 20 << 20, cut: server.Kill}).serve()
	s, r := remote(t, strings.Replace(server.URL("p"), port(server.Addr), port(ln.Addr().String()), 1), "one"), &rows{}
	if _, _, err := s.Put(t.Context(), key, bytes.NewReader(large), 100<<20); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	server.Start()
	if parts(t, s) != 1 {
		t.Fatal("the server was not killed in the middle: the test shows nothing")
	}
	if _, _, err := s.Open(t.Context(), key); !errors.Is(err, ErrNotFound) {
		t.Errorf("half of it is there: %v", err)
	}
	if len(s.doubts) != 1 {
		t.Fatalf("%d doubts", len(s.doubts))
	}
	s.doubts[0].since = s.doubts[0].since.Add(-doubtful)
	if _, err := s.Sweep(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got := objects(t, s); got != "" || parts(t, s) != 0 {
		t.Errorf("left: %s, %d uploads", got, parts(t, s))
	}
	put(t, s, key, "again")
	if got := get(t, s, key); got != "again" {
		t.Errorf("read %q", got)
	}
}

// A reader of a server that falls silent, or dies, gets an error and never the wrong end.
func TestTheServerDiesUnderAReader(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	s := remote(t, server.URL(""), "one")
	if _, _, err := s.Put(t.Context(), key, bytes.NewReader(large), 100<<20); err != nil {
		t.Fatal(err)
	}
	s.Settle(key, true)
	ctx, cancel := context.WithCancel(t.Context())
	r, size, err := s.Open(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel() // the handler has returned, and the body is still to be sent
	if _, err := io.ReadFull(r, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	server.Kill()
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, ErrUnavailable) || n >= size-1<<20 {
		t.Errorf("%d of %d bytes, %v", n, size, err)
	}
}

// A server that hangs is given up after a while, also in the middle of an object, and is used again
// when it goes on.
func TestTheServerHangs(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	s, r := remote(t, server.URL(""), "one"), &rows{named: []string{"before", key}}
	put(t, s, "before", "x")
	if _, _, err := s.Put(t.Context(), key, bytes.NewReader(large), 100<<20); err != nil {
		t.Fatal(err)
	}
	s.Settle(key, true)
	reader, size, err := s.Open(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s.files.(*bucket).patience = 100 * time.Millisecond
	reader.(*content).patience = 100 * time.Millisecond
	server.Pause()
	for name, call := range map[string]func() error{
		"put":    func() error { _, _, err := s.Put(t.Context(), "while", strings.NewReader("x"), 10); return err },
		"open":   func() error { _, _, err := s.Open(t.Context(), "before"); return err },
		"delete": func() error { return s.Delete(t.Context(), "before") },
		"read":   func() error { _, err := io.CopyN(io.Discard, reader, size); return err },
	} {
		if err := call(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.files.(*bucket).patience = patience
	server.Signal(syscall.SIGCONT)
	if got := get(t, s, key); got != string(large) {
		t.Errorf("read %d bytes", len(got))
	}
	put(t, s, "after", "y")
	testkit.Eventually(t, "what the calls left is removed", func() bool { // the server finishes them later
		if _, err := s.Sweep(t.Context(), r); err != nil {
			t.Error(err)
		}
		return !strings.Contains(objects(t, s), ".tmp")
	})
}

// What is wrong with the settings is said at the start, with the part that is wrong, and without
// the secret.
func TestWrongSettingsOfABucket(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	server.User("AKIAOTHER", "other-secret")
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	foreign := httptest.NewServer(http.NotFoundHandler())
	defer foreign.Close()
	good := server.URL("p")
	for name, tt := range map[string]struct{ url, want string }{
		"the bucket is missing":      {strings.Replace(good, "@"+blobtest.Bucket, "@other-bucket", 1), "the bucket does not exist"},
		"the wrong region":           {strings.Replace(good, blobtest.Region, "us-east-1", 1), "region=us-east-1 is not the region"},
		"an unknown access key id":   {server.As("AKIAUNKNOWN", blobtest.Secret, "p"), "does not know the access key id"},
		"the wrong secret":           {server.As(blobtest.KeyID, "wrong-secret", "p"), "the secret access key does not belong"},
		"no right to the bucket":     {server.As("AKIAOTHER", "other-secret", "p"), "lack the rights"},
		"nothing listens":            {strings.Replace(good, port(server.Addr), port(nobody.Addr().String()), 1), "connection refused"},
		"the endpoint is no S3":      {strings.Replace(good, port(server.Addr), port(foreign.Listener.Addr().String()), 1), "404"},
		"https where http is spoken": {strings.Replace(good, "http%3A", "https%3A", 1), "HTTP response to HTTPS client"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), at(t, tt.url), t.TempDir(), "one")
			if err == nil {
				s.Close()
				t.Fatal("it is opened")
			}
			if text := err.Error(); !strings.Contains(text, tt.want) || !strings.Contains(text, "127.0.0.1:") || strings.Contains(text, "other-secret") || strings.Contains(text, blobtest.Secret) ||
				strings.Contains(text, "wrong-secret") || strings.Contains(text, "not%2Fto") {
				t.Errorf("got %s", text)
			}
		})
	}
}

func TestParseLocation(t *testing.T) {
	given := Credentials{KeyID: "given", Secret: "given-secret", Session: "token"}
	for raw, want := range map[string]string{
		"file:///srv/svc/files":                           "the directory /srv/svc/files",
		"file:///srv/svc/files/":                          "the directory /srv/svc/files",
		"s3://bucket":                                     "the bucket bucket at https://s3.amazonaws.com",
		"s3://bucket/a/b/?endpoint=http://10.0.0.1:9000":  "the bucket bucket at http://10.0.0.1:9000, prefix a/b",
		"s3://k:s@bucket/a?endpoint=s3.example&region=eu": "the bucket bucket at https://s3.example, prefix a",
	} {
		if l, err := ParseLocation(raw, given); err != nil || l.String() != want {
			t.Errorf("%s: %s, %v", raw, l, err)
		}
	}
	if l, _ := ParseLocation("s3://k:a%2Fb%2Bc@bucket", given); l.creds != (Credentials{KeyID: "k", Secret: "a/b+c"}) {
		t.Error("the user info does not go first")
	}
	if l, _ := ParseLocation("s3://bucket?region=eu-1", given); l.creds != given || l.region != "eu-1" {
		t.Error("the given credentials are not taken")
	}
	for raw, want := range map[string]string{
		"":                                         "the scheme must be s3 or file",
		"/srv/files":                               "the scheme must be s3 or file",
		"https://k:canary@bucket":                  "the scheme must be s3 or file",
		"file://srv/files":                         "three slashes",
		"file:///":                                 "three slashes",
		"file:relative":                            "three slashes",
		"s3:///prefix":                             "the bucket is missing",
		"s3://Bucket_1":                            "not a name of a bucket",
		"s3://bucket/../x":                         "the prefix must",
		"s3://bucket/.tmp":                         "the prefix must",
		"s3://bucket?regoin=x":                     "the parameters are endpoint and region",
		"s3://bucket?region=":                      "the parameters are endpoint and region",
		"s3://bucket?endpoint=ftp://x":             "the endpoint must be",
		"s3://bucket?endpoint=http://k:canary@x":   "the endpoint must be",
		"s3://bucket?endpoint=http://x/path":       "the endpoint must be",
		"s3://k@bucket":                            "the credentials are missing",
		"s3://AKIA:canary/with+slash@bucket":       "percent-encoded",
		"s3://AKIA:canary%zz@bucket?region=canary": "percent-encoded",
	} {
		if _, err := ParseLocation(raw, given); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := ParseLocation("s3://bucket", Credentials{}); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", given, given, given, struct{ C Credentials }{given}); strings.Contains(text, "given") || strings.Contains(text, "token") {
		t.Errorf("credentials print: %s", text)
	}
	if l, _ := ParseLocation("s3://k:canary@bucket", given); strings.Contains(fmt.Sprintf("%v %+v %#v", l, l, l), "canary") {
		t.Error("a location prints its secret")
	}
}

// What is nested is found in either order, also through symbolic links and in places that do not exist yet.
func TestNestedLocations(t *testing.T) {
	top := t.TempDir()
	if err := os.MkdirAll(filepath.Join(top, "blobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(top, "blobs"), filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	in := "file://" + top
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{in + "/blobs", in + "/blobs/new/er", true},
		{in + "/blobs", in, true},
		{in + "/blobs", in + "/link/new", true},
		{in + "/blobs", in + "/blobs2", false},
		{in + "/blobs", in + "/blobs", false},
		{"s3://bucket", "s3://bucket/new", true},
		{"s3://bucket/a/b", "s3://bucket/a?region=eu-1", true},
		{"s3://bucket/a?endpoint=http://Host:1", "s3://bucket?endpoint=http://host:1", true},
		{"s3://bucket/a", "s3://bucket/ab", false},
		{"s3://bucket/a", "s3://bucket/a", false},
		{"s3://bucket", "s3://other/a", false},
		{"s3://bucket?endpoint=http://host:1", "s3://bucket/a?endpoint=http://host:2", false},
		{"s3://bucket", in, false},
	} {
		var at [2]Location
		for i, raw := range []string{c.a, c.b} {
			l, err := ParseLocation(raw, Credentials{KeyID: "k", Secret: "s"})
			if err != nil {
				t.Fatal(raw, err)
			}
			at[i] = l
		}
		if at[0].Nested(at[1]) != c.want || at[1].Nested(at[0]) != c.want {
			t.Errorf("%s and %s: want %v", c.a, c.b, c.want)
		}
	}
}

// Puts, walks and sweeps of several nodes at once: nothing is removed that is committed, or
// about to be.
func TestNothingOfABucketIsRemovedBeforeItsRowIsCommitted(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	stores := []*Store{remote(t, server.URL("p"), "one"), remote(t, server.URL("p"), "two")}
	r := &rows{}
	ctx, cancel := context.WithCancel(t.Context())
	var sweeps, puts sync.WaitGroup
	for _, s := range stores {
		sweeps.Go(func() {
			for ctx.Err() == nil {
				_, errSweep := s.Sweep(t.Context(), r)
				_, errWalk := s.Walk(t.Context(), r)
				if err := errors.Join(errSweep, errWalk); err != nil {
					t.Error(err)
				}
			}
		})
	}
	old := time.Now().Add(-time.Hour)
	for i, s := range stores {
		puts.Go(func() {
			for n := range 20 {
				key := fmt.Sprintf("k/%d-%d", i, n)
				if _, _, err := s.Put(t.Context(), key, strings.NewReader("x"), 10); err != nil {
					t.Error(err)
				}
				if err := os.Chtimes(filepath.Join(server.Dir, "p", key), old, old); err != nil { // a client that took long
					t.Error(err)
				}
				r.mu.Lock()
				r.named = append(r.named, key)
				r.mu.Unlock()
				s.Settle(key, true)
			}
		})
	}
	puts.Wait()
	cancel()
	sweeps.Wait()
	for _, key := range r.named {
		if _, err := stores[0].files.stat(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "nothing is left", func() bool { return !strings.Contains(objects(t, stores[0]), ".tmp") })
}

// The server refuses an upload while another operation is under way at its place: the upload is made again, with the
// whole content, a few times.
func TestAnUploadThatMeetsAnotherIsMadeAgain(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	for _, row := range []struct {
		conflicts int32
		puts      int32
		err       error
	}{{attempts - 1, attempts, nil}, {attempts, attempts, ErrUnavailable}} {
		var left, puts atomic.Int32
		behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server.Addr})
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+key) {
				puts.Add(1)
				if left.Add(-1) >= 0 {
					io.Copy(io.Discard, r.Body)
					w.WriteHeader(http.StatusConflict)
					io.WriteString(w, `<?xml version="1.0"?><Error><Code>OperationAborted</Code><Message>A conflicting operation is in progress.</Message></Error>`)
					return
				}
			}
			behind.ServeHTTP(w, r)
		}))
		s := remote(t, strings.Replace(server.URL("conflict"), port(server.Addr), port(front.Listener.Addr().String()), 1), "one")
		left.Store(row.conflicts)
		_, _, err := s.Put(t.Context(), key, strings.NewReader("the content"), 100)
		if !errors.Is(err, row.err) || puts.Load() != row.puts {
			t.Errorf("%d conflicts: %d uploads, %v", row.conflicts, puts.Load(), err)
		}
		if err == nil {
			s.Settle(key, true)
			if got := get(t, s, key); got != "the content" {
				t.Errorf("read %q", got)
			}
		}
		front.Close()
	}
}
