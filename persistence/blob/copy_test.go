package blob

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsvc/persistence/blob/blobtest"
)

// moving copies with the checksums of the rows, and checks the counts.
func moving(t *testing.T, from, to *Store, sums map[string][sha256.Size]byte, verify bool, copied, there int64, damaged ...string) {
	t.Helper()
	failed := map[string]bool{}
	c := &Copying{From: from, To: to, Verify: verify, Failed: func(key string, err error) {
		if failed[key] = true; !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}, Sums: func(_ context.Context, keys []string) (map[string][sha256.Size]byte, error) {
		known := map[string][sha256.Size]byte{}
		for _, k := range keys {
			if sum, ok := sums[k]; ok {
				known[k] = sum
			}
		}
		return known, nil
	}}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, key := range damaged {
		want[key] = true
	}
	if c.Copied.Load() != copied || c.There.Load() != there || !maps.Equal(failed, want) {
		t.Errorf("%d copied, %d were there, %v damaged; want %d, %d, %v", c.Copied.Load(), c.There.Load(), failed, copied, there, damaged)
	}
}

func TestFilesAreCopied(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, from, to string }{{"into a bucket", "dir", "bucket"}, {"out of a bucket", "bucket", "dir"}, {"between buckets", "bucket", "bucket"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := blobtest.New(t)
			places := map[string]string{} // directories of the stores
			opened := func(role, kind string) *Store {
				if kind == "bucket" {
					places[role] = filepath.Join(server.Dir, role)
					return remote(t, server.URL(role), role)
				}
				s, dir := open(t)
				places[role] = dir
				return s
			}
			from, to := opened("from", tt.from), opened("to", tt.to)
			sums := map[string][sha256.Size]byte{}
			for i := range 20 {
				key := fmt.Sprintf("attachments/%d/%d", i%3, i)
				put(t, from, key, strings.Repeat("x", i*1000))
				if i%2 == 0 {
					sums[key] = sha256.Sum256([]byte(strings.Repeat("x", i*1000)))
				}
			}
			leave(t, from, "of/a/process/at/work", "y") // its note is not copied
			moving(t, from, to, sums, false, 21, 0)
			for i := range 20 {
				if got := get(t, to, fmt.Sprintf("attachments/%d/%d", i%3, i)); got != strings.Repeat("x", i*1000) {
					t.Errorf("file %d has %d bytes", i, len(got))
				}
			}
			if got := objects(t, to); strings.Contains(got, ".tmp") {
				t.Errorf("beside the files: %s", got)
			}
			put(t, from, "new", "z")
			if err := from.Delete(t.Context(), "attachments/0/0"); err != nil {
				t.Fatal(err)
			}
			moving(t, from, to, sums, false, 1, 20)
			damage := func(role, key string) {
				f, err := os.OpenFile(filepath.Join(places[role], key), os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteAt([]byte("!"), 0); err != nil {
					t.Fatal(err)
				}
			}
			damage("to", "attachments/1/4") // with a checksum in its row
			damage("to", "attachments/2/5") // and without
			moving(t, from, to, sums, true, 2, 19)
			for key, content := range map[string]string{"attachments/1/4": strings.Repeat("x", 4000), "attachments/2/5": strings.Repeat("x", 5000)} {
				if get(t, to, key) != content {
					t.Errorf("%s is not repaired", key)
				}
			}
			damage("from", "attachments/1/4")
			if err := to.Delete(t.Context(), "attachments/1/4"); err != nil {
				t.Fatal(err)
			}
			moving(t, from, to, sums, false, 0, 20, "attachments/1/4")
			if _, _, err := to.Open(t.Context(), "attachments/1/4"); !errors.Is(err, ErrNotFound) {
				t.Errorf("a damaged file is copied: %v", err)
			}
		})
	}
}

// A copy that the new store's end interrupts says so and is continued by the next one.
func TestACopyIsContinued(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go (&faltering{Listener: ln, to: server.Addr, after: 2 << 20, cut: server.Kill}).serve()
	from, _ := open(t)
	to := remote(t, strings.Replace(server.URL(""), port(server.Addr), port(ln.Addr().String()), 1), "to")
	for i := range 40 {
		put(t, from, fmt.Sprint("f", i), strings.Repeat(fmt.Sprint(i%10), 100_000))
	}
	sums := func(context.Context, []string) (map[string][sha256.Size]byte, error) { return nil, nil }
	first := &Copying{From: from, To: to, Sums: sums, Failed: func(key string, err error) { t.Errorf("%s: %v", key, err) }}
	if err := first.Run(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	done := first.Copied.Load()
	if done == 0 || done == 40 {
		t.Fatalf("%d files before the end: the test shows nothing", done)
	}
	server.Start()
	second := &Copying{From: from, To: to, Sums: sums, Failed: first.Failed}
	if err := second.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, there := second.Copied.Load(), second.There.Load(); again+there != 40 || there < done {
		t.Errorf("%d, then %d copied and %d there", done, again, there)
	}
	for i := range 40 {
		if got := get(t, to, fmt.Sprint("f", i)); got != strings.Repeat(fmt.Sprint(i%10), 100_000) {
			t.Errorf("file %d has %d bytes", i, len(got))
		}
	}
}
