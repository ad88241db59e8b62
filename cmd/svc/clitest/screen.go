package clitest

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Screen shows what is written to it as a terminal does, as far as our commands need that. A
// line that scrolls out at the top can no longer be changed.
type Screen struct {
	Columns, Rows int

	mu    sync.Mutex // guards the fields below
	lines [][]rune
	top   int // the first line that is on the screen
	x, y  int
	rest  []byte // of a sequence that is not complete
}

// OpenScreen returns a screen and the file of a terminal that writes to it. Both end with the
// test.
func OpenScreen(t *testing.T, columns, rows int) (*Screen, *os.File) {
	t.Helper()
	master, terminal := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	s := &Screen{Columns: columns, Rows: rows}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			s.Write(b[:n])
		}
	}()
	t.Cleanup(func() {
		terminal.Close()
		master.Close()
		<-ended
	})
	return s, terminal
}

var sequence = regexp.MustCompile(`^\x1b\[([0-9;]*)([A-Za-z])`)

// Write shows p.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := string(append(s.rest, p...))
	s.rest = nil
	for text != "" {
		if text[0] == '\x1b' {
			m := sequence.FindStringSubmatch(text)
			if m == nil {
				s.rest = []byte(text)
				break
			}
			s.control(m[1], m[2])
			text = text[len(m[0]):]
			continue
		}
		r := []rune(text[:min(len(text), 4)])[0]
		if r == '\ufffd' && len(text) < 4 {
			s.rest = []byte(text)
			break
		}
		s.put(r)
		text = text[len(string(r)):]
	}
	return len(p), nil
}

func (s *Screen) control(arg, verb string) {
	switch n, _ := strconv.Atoi(arg); verb {
	case "A":
		s.y = max(s.y-n, s.top)
	case "K":
		s.line()
		s.lines[s.y] = s.lines[s.y][:min(s.x, len(s.lines[s.y]))]
	case "J":
		s.line()
		s.lines[s.y] = s.lines[s.y][:min(s.x, len(s.lines[s.y]))]
		s.lines = s.lines[:s.y+1]
	}
}

// line makes the line of the cursor exist, and scrolls to it.
func (s *Screen) line() {
	for len(s.lines) <= s.y {
		s.lines = append(s.lines, nil)
	}
	s.top = max(s.top, s.y-s.Rows+1)
}

func (s *Screen) put(r rune) {
	switch r {
	case '\r':
		s.x = 0
	case '\n': // a terminal adds the return
		s.x, s.y = 0, s.y+1
		s.line()
	default:
		if s.x == s.Columns {
			s.x, s.y = 0, s.y+1
		}
		s.line()
		for len(s.lines[s.y]) <= s.x {
			s.lines[s.y] = append(s.lines[s.y], ' ')
		}
		s.lines[s.y][s.x] = r
		s.x++
	}
}

// Text returns what is on the screen, and what has scrolled out of it.
func (s *Screen) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, l := range s.lines {
		b.WriteString(strings.TrimRight(string(l), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// Shows waits until the screen shows all texts at once.
func (s *Screen) Shows(t *testing.T, texts ...string) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	missing := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-tick.C {
		all := s.Text()
		missing = ""
		for _, text := range texts {
			if !strings.Contains(all, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
	}
	t.Fatalf("no %q on the screen:\n%s", missing, s.Text())
}
