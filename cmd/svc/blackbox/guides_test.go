package blackbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/clitest"
)

// shellBlock is a block of a guide that a reader pastes into a shell.
type shellBlock struct {
	line   int
	text   string
	notRun string // why the test does not run it
}

var notRun = regexp.MustCompile(`^<!-- not run: (.+) -->$`)

// shellBlocks returns the sh blocks of a document, in order. A hidden comment before a block keeps it from
// being run.
func shellBlocks(t *testing.T, document string) (out []shellBlock) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../..", document))
	if err != nil {
		t.Fatal(err)
	}
	before, inside := "", false
	for i, line := range strings.Split(string(raw), "\n") {
		switch {
		case inside && line == "```":
			before, inside = "", false
		case inside:
			out[len(out)-1].text += line + "\n"
		case line == "```sh":
			b := shellBlock{line: i + 1}
			if m := notRun.FindStringSubmatch(before); m != nil {
				b.notRun = m[1]
			}
			out, inside = append(out, b), true
		case strings.TrimSpace(line) != "":
			before = line
		}
	}
	return out
}

// firstTerminal is the terminal in which svc dev runs: svc dev is started again whenever it has ended.
type firstTerminal struct {
	ready chan struct{} // holds one token after svc dev has printed everything
	left  chan struct{} // closed when it is not restarted any more
	ended chan struct{} // closed when the last one has ended
	mu    sync.Mutex    // guards cmd and log
	cmd   *exec.Cmd
	log   clitest.Output
}

func newFirstTerminal(t *testing.T, dir string, env []string) *firstTerminal {
	t.Helper()
	f := &firstTerminal{ready: make(chan struct{}, 1), left: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for {
			select {
			case <-f.left:
				return
			default:
			}
			f.once(dir, env)
			select { // it is no longer ready
			case <-f.ready:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		close(f.left)
		f.mu.Lock()
		if f.cmd != nil {
			f.cmd.Process.Signal(syscall.SIGTERM)
		}
		f.mu.Unlock()
		<-f.ended
		if t.Failed() {
			t.Logf("svc dev printed:\n%s", f.log.String())
		}
	})
	return f
}

func (f *firstTerminal) once(dir string, env []string) {
	out, in := io.Pipe()
	cmd := exec.Command(filepath.Join(dir, "bin", "svc"), "dev")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, in, &f.log
	end, err := startChild(cmd)
	if err != nil {
		fmt.Fprintln(&f.log, err)
		return
	}
	f.mu.Lock()
	f.cmd = cmd
	f.mu.Unlock()
	go func() {
		<-end
		in.Close()
	}()
	for line := range lines(out) {
		fmt.Fprintln(&f.log, line)
		if strings.HasPrefix(line, "Or talk to it:") {
			f.ready <- struct{}{}
		}
	}
	<-end
}

// wait waits until svc dev has printed everything.
func (f *firstTerminal) wait(ctx context.Context) error {
	select {
	case <-f.ready:
		f.ready <- struct{}{}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// preface makes a shell strict: an unset variable, a failed command or a refused call ends it. A stream may
// be cut.
const preface = `set -eu -o pipefail
curl() {
  case " $* " in
  *" -sf "*) command curl "$@" ;;
  *" -N "*) command curl --fail-with-body --max-time 25 "$@" || case $? in 18 | 56) ;; *) return 1 ;; esac ;;
  *) command curl --fail-with-body --max-time 25 "$@" ;;
  esac
}
`

// The shell blocks of the guides can be pasted: those of one document in order into one shell, beside a
// running svc dev.
func TestTheGuidesCanBePasted(t *testing.T) {
	t.Parallel()
	ctx := within(t, 4*time.Minute)
	dir := dataDir(t)
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary(t), filepath.Join(dir, "bin", "svc")); err != nil {
		t.Fatal(err)
	}
	_, tools, _ := strings.Cut(reserved(t), ":")
	env := append(os.Environ(), "SVC_ADDR="+reserved(t), "SVC_DATA_DIR=./data", "HOME="+dir, "XDG_CONFIG_HOME="+filepath.Join(dir, "config"),
		"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "TOOLS_PORT="+tools, "SVC_URL=", "SVC_TENANT=", "SVC_API_KEY=")
	first := newFirstTerminal(t, dir, env)
	if err := first.wait(ctx); err != nil {
		t.Fatal(err)
	}
	for _, document := range []string{"README.md", "docs/tutorial.md", "docs/api-guide.md", "docs/embed.md", "docs/triggers.md", "docs/widget.md", "docs/operator-guide.md"} {
		ran, skipped := 0, 0
		shell := newShell(t, dir, env)
		for _, b := range shellBlocks(t, document) {
			where := fmt.Sprintf("%s:%d", document, b.line)
			if b.notRun != "" {
				skipped++
				t.Logf("%s is not run: %s", where, b.notRun)
				continue
			}
			if err := first.wait(ctx); err != nil {
				t.Fatalf("%s: svc dev is not back: %v", where, err)
			}
			if err := shell.paste(ctx, b.text); err != nil {
				t.Fatalf("%s: %v\n%s", where, err, b.text)
			}
			ran++
		}
		shell.close()
		t.Logf("%s: %d blocks ran, %d did not", document, ran, skipped)
		if document != "docs/widget.md" && document != "docs/operator-guide.md" && ran == 0 {
			t.Errorf("%s: no block ran", document)
		}
	}
}

// pastedInto is a shell into which a reader pastes blocks.
type pastedInto struct {
	dir string
	log string // the file of its output
	cmd *exec.Cmd
	in  io.WriteCloser
	end <-chan struct{} // closed when the shell has ended
	n   int             // number of blocks so far
}

func newShell(t *testing.T, dir string, env []string) *pastedInto {
	t.Helper()
	s := &pastedInto{dir: dir, cmd: exec.Command("bash")}
	s.cmd.Dir, s.cmd.Env = dir, env
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // includes its background processes
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := os.CreateTemp(dir, "shell-*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// A file, because background processes would keep a pipe open.
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = s.cmd.Wait()
		close(ended)
	}()
	s.end, s.log = ended, out.Name()
	t.Cleanup(s.close)
	if _, err := io.WriteString(s.in, preface); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *pastedInto) close() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended already
	<-s.end
}

// pasteTime is how long a block may take.
const pasteTime = 60 * time.Second

// paste runs a block in the shell and waits for its end.
func (s *pastedInto) paste(ctx context.Context, text string) error {
	s.n++
	block, done := filepath.Join(s.dir, fmt.Sprintf("block-%d-%d.sh", s.cmd.Process.Pid, s.n)), filepath.Join(s.dir, fmt.Sprintf("done-%d-%d", s.cmd.Process.Pid, s.n))
	if err := os.WriteFile(block, []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.in, ". %s < /dev/null\n: > %s\n", block, done); err != nil {
		return fmt.Errorf("the shell has ended: %w\n%s", err, s.tail())
	}
	ctx, cancel := context.WithTimeout(ctx, pasteTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(done); err == nil {
			return nil
		}
		select {
		case <-s.end:
			if _, err := os.Stat(done); err == nil {
				return nil
			}
			return fmt.Errorf("failed: %v\n%s", s.cmd.ProcessState, s.tail())
		case <-ctx.Done():
			return fmt.Errorf("does not end\n%s", s.tail())
		case <-tick.C:
		}
	}
}

// tail returns the end of the shell's output.
func (s *pastedInto) tail() string {
	f, err := os.Open(s.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var last []string
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if last = append(last, in.Text()); len(last) > 40 {
			last = last[1:]
		}
	}
	return strings.Join(last, "\n")
}

// The shell reports a pasted block that fails.
func TestAPasteThatFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, row := range map[string]struct{ text, wants string }{
		"a variable that is not set":      {"echo ok\ncurl -sS $NEVER_SET\n", "NEVER_SET"},
		"a command that fails":            {"false\n", "exit status 1"},
		"a command that fails in a pipe":  {"false | cat\n", "exit status 1"},
		"a call that nobody answers":      {"curl -sS http://127.0.0.1:1/\n", "exit status 7"},
		"an unknown command":              {"nonsense-of-ours\n", "nonsense-of-ours"},
		"an end of the shell":             {"exit 0\n", "failed"},
		"a block that waits for a person": {"sleep 600\n", "does not end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shell := newShell(t, dir, os.Environ())
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if !strings.Contains(row.wants, "does not end") {
				ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
			}
			defer cancel()
			if err := shell.paste(ctx, row.text); err == nil || !strings.Contains(err.Error(), row.wants) {
				t.Errorf("%v, want %s", err, row.wants)
			}
		})
	}
	shell := newShell(t, dir, os.Environ())
	for i, text := range []string{"A=1; f() { echo $A; }\n", "test $(f) = 1\n", "read X || test -z \"$X\"\n", "sleep 600 &\n"} {
		if err := shell.paste(t.Context(), text); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// The guides never stop other people's processes, and a block that is not run gives the reason.
func TestTheGuidesShellIsHarmless(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"README.md", "docs/tutorial.md", "docs/api-guide.md", "docs/embed.md", "docs/triggers.md", "docs/widget.md", "docs/operator-guide.md", "docs/scaling.md", "docs/webhooks.md"} {
		for _, b := range shellBlocks(t, document) {
			for _, word := range []string{"pkill", "killall"} {
				if strings.Contains(b.text, word) {
					t.Errorf("%s:%d: %s", document, b.line, word)
				}
			}
			if strings.Contains(b.text, "pgrep") && !strings.Contains(b.text, "pgrep -P") {
				t.Errorf("%s:%d: pgrep finds other people's processes", document, b.line)
			}
			if strings.Contains(b.text, "…") {
				t.Errorf("%s:%d: a part is left out", document, b.line)
			}
		}
	}
}
