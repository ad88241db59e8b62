package parser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/schemas/document"
)

// TestMain makes the test binary its own child. Some names of files are orders to misbehave.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Command {
		told, err := io.ReadAll(os.Stdin)
		if err != nil {
			panic(err)
		}
		var o order
		if err := json.Unmarshal(told, &o); err != nil {
			panic(err)
		}
		if misbehave := manners[o.Name]; misbehave != nil {
			if err := confine(o.Memory, o.CPU); err != nil {
				panic(err)
			}
			misbehave()
		}
		if err := Child(bytes.NewReader(told), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var (
	eaten [][]byte
	spun  int
)

var manners = map[string]func(){
	"spin": func() {
		for {
			spun++
		}
	},
	"eat": func() {
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			eaten = append(eaten, b)
		}
	},
	"silent": func() { select {} },
	"die":    func() { os.Exit(3) },
	"killed": func() { // as the kernel kills a process when the machine has no memory left
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {}
	},
	"large": func() { os.Stdout.Write([]byte{255, 255, 255, 255}) },
}

func testParser(t *testing.T, change func(*Config)) *Parser {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Command: []string{self, Command}, Spool: t.TempDir(), CPU: time.Second, Silence: time.Minute, Inline: -1}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

func input(name, content string) document.Input {
	return document.Input{Name: name, Size: int64(len(content)), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

var chunking = document.Chunking{MaxTokens: 20, OverlapTokens: 0}

func TestAFileBecomesChunks(t *testing.T) {
	t.Parallel()
	for name, inline := range map[string]int64{"in a child": -1, "in this process": 1 << 20} {
		t.Run(name, func(t *testing.T) { testAFileBecomesChunks(t, inline) })
	}
}

func testAFileBecomesChunks(t *testing.T, inline int64) {
	t.Parallel()
	p := testParser(t, func(c *Config) {
		if c.Inline = inline; inline > 0 {
			c.Command = []string{"/no/such/child"}
		}
	})
	var got []string
	text := "# Orders\n\nRefunds take **three** days.\n\n" + strings.Repeat("Every parcel has a number. ", 30)
	info, err := p.Parse(t.Context(), input("guide.md", text), chunking, func(c document.Chunk) error {
		if c.Position != len(got) {
			t.Errorf("position %d after %d chunks", c.Position, len(got))
		}
		got = append(got, c.Text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(got, "\n")
	if info.Chunks != len(got) || len(got) < 3 || !strings.Contains(all, "Refunds take three days.") || info.MediaType != "text/markdown" {
		t.Errorf("%+v, %q", info, all)
	}
}

// Each fault of a file is told in plain words, and what is wrong with the service is no fault.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, content, want string
	}{
		{"empty.txt", "", "the file is empty"},
		{"blank.txt", "   \n\n", "the file holds no text"},
		{"spin", "x", "reading the file took longer than 1s of computing"},
		{"eat", "x", "reading the file needed more than 96 MiB of memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := testParser(t, func(cfg *Config) { cfg.Memory = 96 << 20 })
			if c.name == "eat" {
				p = testParser(t, func(cfg *Config) { cfg.Memory, cfg.CPU = 96<<20, time.Minute })
			}
			_, err := p.Parse(t.Context(), input(c.name, c.content), chunking, func(document.Chunk) error { return nil })
			if f := new(document.Fault); !errors.As(err, &f) || f.Reason != c.want {
				t.Errorf("%v, want the fault %q", err, c.want)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		p := testParser(t, func(cfg *Config) { cfg.Silence = 50 * time.Millisecond })
		_, err := p.Parse(t.Context(), input("silent", "x"), chunking, nil)
		if !errors.Is(err, errSilent) || errors.As(err, new(*document.Fault)) {
			t.Errorf("%v", err)
		}
	})
	for _, name := range []string{"die", "large", "killed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := testParser(t, nil).Parse(t.Context(), input(name, "x"), chunking, nil)
			if f := new(document.Fault); err == nil || errors.As(err, &f) {
				t.Errorf("%v is a fault of the file", err)
			}
		})
	}
}

func TestACallerEndsAParse(t *testing.T) {
	t.Parallel()
	p := testParser(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.Parse(ctx, input("silent", "x"), chunking, nil)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	stop := errors.New("enough")
	long := strings.Repeat("Every parcel has a number. ", 50_000)
	if _, err := p.Parse(t.Context(), input("a.txt", long), chunking, func(document.Chunk) error { return stop }); err != stop {
		t.Errorf("%v, want the error of emit", err)
	}
	short := input("a.txt", "some text")
	short.Size = 4
	if _, err := p.Parse(t.Context(), short, chunking, nil); err == nil || !strings.Contains(err.Error(), "its row says 4") {
		t.Errorf("a content of another size: %v", err)
	}
	missing := errors.New("no such file")
	short.Open = func(context.Context) (io.ReadCloser, error) { return nil, missing }
	if _, err := p.Parse(t.Context(), short, chunking, nil); err != missing {
		t.Errorf("%v, want the error of Open", err)
	}
}

// No file stays in the spool, and no more children run than there are places.
func TestPlaces(t *testing.T) {
	t.Parallel()
	p := testParser(t, func(cfg *Config) { cfg.Most = 1 })
	p.places <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Parse(ctx, input("a.txt", "text"), chunking, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v beside a full house", err)
	}
	<-p.places
	if _, err := p.Parse(t.Context(), input("a.txt", "text"), chunking, func(document.Chunk) error { return nil }); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(p.cfg.Spool); err != nil || len(left) > 0 {
		t.Errorf("left in the spool: %v, %v", left, err)
	}
}

// Only a small text is read without a child.
func TestWhatIsReadInAChild(t *testing.T) {
	t.Parallel()
	p := testParser(t, func(c *Config) { c.Command, c.Inline = []string{"/no/such/child"}, 100 })
	for name, c := range map[string]struct {
		content string
		child   bool
	}{
		"a.txt":         {strings.Repeat("x", 100), false},
		"b.txt":         {strings.Repeat("x", 101), true},
		"c.md":          {"# a", false},
		"d.json":        {`{"a":1}`, false},
		"e.csv":         {"a,b\n1,2", false},
		"f.html":        {"<html><p>a", false},
		"archive.txt":   {"PK\x03\x04 and more", true},
		"pdf.txt":       {"%PDF-1.7 and more", true},
		"old.txt":       {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", true},
		"binary.txt":    {"\x00\x01\x02\x03\x04\x05", true},
		"nothing.txt":   {"  \n ", true},
		"document.docx": {"text", false},
	} {
		_, err := p.Parse(t.Context(), input(name, c.content), chunking, func(document.Chunk) error { return nil })
		if child := err != nil && strings.Contains(err.Error(), "start a parser"); child != c.child {
			t.Errorf("%s: %v", name, err)
		}
	}
	in := input("short.txt", "x")
	in.Size = 2
	if _, err := p.Parse(t.Context(), in, chunking, func(document.Chunk) error { return nil }); err == nil || errors.As(err, new(*document.Fault)) {
		t.Errorf("a content that is shorter than its row says: %v", err)
	}
}
