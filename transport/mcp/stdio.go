package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"

	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
)

const (
	maxProcesses = 64
	maxQueued    = 512      // messages that a process has not read
	maxUnread    = 32 << 20 // and their bytes
	stderrTail   = 8 << 10
	graceful     = time.Second // between closing its input and killing it
)

var errDead = errors.New("the process has ended")

// process is a running stdio tool server, the leader of a process group of its
// own that dies with it, with us, or when it breaks the rules: a line over 8 MiB,
// or not reading what it is sent. One that was not told something because the
// lease was lost is not asked again, and ends when nobody waits for it any more.
type process struct {
	cmd *exec.Cmd
	in  *inbox
	out *lines
	err *tail

	ended chan struct{} // closed when it has ended and its group is dead
	kill  func()        // once
	files []*os.File    // our ends of the pipes
	live  *atomic.Int32 // the gateway's count

	stopping atomic.Bool
}

// start runs a command that the operator allows.
func (g *Gateway) start(command []string, t Target, o *op) (*process, error) {
	if g.forks.live.Add(1) > maxProcesses {
		g.forks.live.Add(-1)
		return nil, &Error{Kind: Unreachable, Message: "too many stdio tool servers are running"}
	}
	p, err := g.spawn(command, t, o)
	if err != nil {
		g.forks.live.Add(-1)
		if errors.Is(err, egress.ErrSuspended) {
			return nil, suspended(false)
		}
		return nil, &Error{Kind: Unreachable, Message: "the tool server's command could not be started", Err: o.cause(err)}
	}
	processes.Inc()
	return p, nil
}

func (g *Gateway) spawn(command []string, t Target, o *op) (*process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append([]string{}, g.cfg.Env...)
	if g.cfg.Env == nil {
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	}
	switch t.AuthKind {
	case tool.AuthAPIKey:
		cmd.Env = append(cmd.Env, "MCP_API_KEY="+o.value)
	case tool.AuthBearer, tool.AuthOAuth:
		cmd.Env = append(cmd.Env, "MCP_TOKEN="+strings.TrimPrefix(o.value, "Bearer "))
	}
	ownGroup(cmd)
	var files []*os.File
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w, err
	}
	inR, inW, err := pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := pipe()
	if err != nil {
		closeAll()
		return nil, err
	}
	errR, errW, err := pipe()
	if err != nil {
		closeAll()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	err = g.forks.do(func() error {
		if !g.cfg.Live() {
			return egress.ErrSuspended
		}
		return cmd.Start()
	})
	if err != nil {
		closeAll()
		return nil, err
	}
	inR.Close()
	outW.Close()
	errW.Close()
	p := &process{cmd: cmd, ended: make(chan struct{}), files: []*os.File{inW, outR, errR}, live: &g.forks.live}
	p.kill = sync.OnceFunc(func() { killGroup(cmd) })
	p.in = newInbox(inW, g.cfg.Live, p.kill)
	p.out = &lines{r: bufio.NewReader(outR), kill: p.kill}
	p.err = &tail{}
	g.work.Go(p.in.pump)
	g.work.Go(func() { p.err.drain(errR) })
	g.work.Go(func() {
		err := p.wait()
		if !p.stopping.Load() {
			g.cfg.Log.Warn().Err(err).Stringer("tenant", t.Tenant).Stringer("server", t.Server).Str("command", t.Endpoint).Msg("a stdio tool server ended")
		}
	})
	return p, nil
}

// wait reaps the process and what it left behind.
func (p *process) wait() error {
	err := p.cmd.Wait()
	p.kill()
	p.live.Add(-1)
	processes.Dec()
	close(p.ended)
	return err
}

// dead reports whether the process is of no more use: its output has ended, a
// moment before it is reaped, or it has missed something.
func (p *process) dead() bool { return p.out.ended.Load() || p.in.missed.Load() }

// ask sends a request by the library, and lets o know whether it was written, or
// may have been.
func (p *process) ask(ctx context.Context, o *op, r transport.JSONRPCRequest, by transport.Interface) (*transport.JSONRPCResponse, error) {
	switch {
	case p.in.cutOff.Load(), !p.in.live(): // before the process misses it, and is lost to others
		return nil, suspended(false)
	case p.dead():
		return nil, &Error{Kind: Unreachable, Message: "the tool server's process ended", Err: errProcessedNothing}
	}
	id, err := json.Marshal(r.ID)
	if err != nil {
		return nil, err
	}
	bound, cancel := context.WithCancel(ctx)
	defer cancel()
	q := &request{cancel: cancel}
	p.in.expect(string(id), q)
	defer p.in.forget(string(id))
	resp, err := by.SendRequest(bound, r)
	sent := q.leave()
	if sent {
		o.wrote()
	}
	if err != nil && ctx.Err() == nil && p.in.cutOff.Load() {
		return nil, suspended(sent)
	}
	return resp, err
}

// stop ends the process: its input first, itself a second later.
func (p *process) stop() {
	p.stopping.Store(true)
	p.in.Close()
	grace := time.NewTimer(graceful)
	defer grace.Stop()
	select {
	case <-p.ended:
	case <-grace.C:
		p.kill()
		<-p.ended
	}
	for _, f := range p.files {
		f.Close() // ends readers even where a grandchild that left the group holds the other end
	}
}

// explain adds the process's last words to a failure to begin.
func (p *process) explain(o *op, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Err == nil {
		if said := o.said(p.err.last()); said != "" {
			e.Err = errors.New(said)
		}
	}
	return err
}

// request is one that waits for its answer. Either it is written, or its caller
// leaves before and it never is.
type request struct {
	cancel context.CancelFunc
	state  atomic.Int32
}

// Values of request.state.
const (
	queued  = iota
	written // or a part of it
	unwritten
)

// take claims the request for being written, nil included, which is a message
// that nobody waits for. It fails when the caller has left.
func (q *request) take() bool { return q == nil || q.state.CompareAndSwap(queued, written) }

// failed says that no more than n bytes of it are written.
func (q *request) failed(n int) {
	if q == nil {
		return
	}
	if n == 0 {
		q.state.Store(unwritten)
	}
	q.cancel()
}

// leave says that nobody waits any more, and reports whether it was written.
func (q *request) leave() bool {
	return !q.state.CompareAndSwap(queued, unwritten) && q.state.Load() == written
}

// inbox is the process's standard input: writing to it never waits for the process.
type inbox struct {
	to     *os.File
	live   func() bool
	queue  chan letter
	kill   func()
	missed atomic.Bool // something was not written, and nothing will be any more
	cutOff atomic.Bool // and that because the lease was lost

	mu     sync.Mutex // guards the fields below
	asked  map[string]*request
	unread int
	closed bool
}

// letter is one message.
type letter struct {
	text []byte
	of   *request // nil: nobody waits for an answer
}

func newInbox(to *os.File, live func() bool, kill func()) *inbox {
	return &inbox{to: to, live: live, queue: make(chan letter, maxQueued), kill: kill, asked: map[string]*request{}}
}

// expect says who waits for the request of this id, which is about to come.
func (b *inbox) expect(id string, q *request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[id] = q
}

func (b *inbox) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.asked, id)
}

// Write implements io.Writer for whole messages. A process that does not read is
// killed.
func (b *inbox) Write(p []byte) (int, error) {
	id := requestID(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errDead
	}
	if b.unread+len(p) <= maxUnread {
		select {
		case b.queue <- letter{append([]byte(nil), p...), b.asked[id]}:
			b.unread += len(p)
			return len(p), nil
		default:
		}
	}
	b.kill()
	return 0, errDead
}

// requestID is the id, as JSON, of a message that is a request; else it is empty.
// It reads no further than it must: arguments come last.
func requestID(p []byte) string {
	d := json.NewDecoder(bytes.NewReader(p))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	var id json.RawMessage
	asks := false
	for d.More() && (id == nil || !asks) {
		name, err := d.Token()
		if err != nil {
			return ""
		}
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return ""
		}
		switch name {
		case "id":
			id = v
		case "method": // the answer to a request of the server has an id too, and none of ours
			asks = true
		}
	}
	if !asks {
		return ""
	}
	return string(id)
}

// Close implements io.Closer.
func (b *inbox) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		close(b.queue)
	}
	return nil
}

// pump writes until the inbox closes. What is left behind a message that could
// not be written is not written either.
func (b *inbox) pump() {
	var broken error
	for m := range b.queue {
		if m.of.take() {
			n := 0
			if broken == nil {
				if n, broken = writeLive(b.to, m.text, b.live); broken != nil {
					b.cutOff.Store(errors.Is(broken, egress.ErrSuspended))
					b.missed.Store(true)
				}
			}
			if broken != nil && b.cutOff.Load() { // else the process is about to end
				m.of.failed(n)
				if n > 0 {
					b.kill() // at the end of its input it could take the part for the whole
				}
			}
		}
		b.mu.Lock()
		b.unread -= len(m.text)
		b.mu.Unlock()
	}
	b.to.Close()
}

// lines is the process's standard output. It ends where a line is longer or
// richer than an answer may be. The process ends with it.
type lines struct {
	r     *bufio.Reader
	kill  func()
	size  int
	scan  scanner
	broke atomic.Bool // by a line that is too much
	ended atomic.Bool
}

// Read implements io.Reader. Every end is io.EOF: the library would log another.
func (l *lines) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		l.size += len(line)
		if l.size > maxAnswer || !l.scan.fits(line) {
			l.broke.Store(true)
			n, err = 0, io.EOF
			break
		}
		if ended {
			l.size, l.scan = 0, scanner{}
		}
		rest = after
	}
	if err != nil {
		err = io.EOF
		l.ended.Store(true)
		l.kill() // who can say nothing more is of no use
	}
	return n, err
}

// tail keeps the end of the process's standard error.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

func (t *tail) drain(r io.Reader) {
	p := make([]byte, 4<<10)
	for {
		n, err := r.Read(p)
		t.mu.Lock()
		t.buf = append(t.buf, p[:n]...)
		if over := len(t.buf) - stderrTail; over > 0 {
			t.buf = append(t.buf[:0], t.buf[over:]...)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// last is the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.TrimSpace(string(t.buf))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// forker starts processes on one thread that lives as long as the gateway,
// because a parent-death signal follows the thread that forked.
type forker struct {
	live atomic.Int32

	mu   sync.Mutex // guards the fields below
	work chan func()
	done chan struct{}
}

func (f *forker) do(start func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.work == nil {
		f.work, f.done = make(chan func()), make(chan struct{})
		go f.loop(f.work, f.done)
	}
	err := make(chan error)
	f.work <- func() { err <- start() }
	return <-err
}

func (f *forker) loop(work chan func(), done chan struct{}) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for w := range work {
		w()
	}
	close(done)
}

func (f *forker) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.work != nil {
		close(f.work)
		<-f.done
		f.work = nil
	}
}
