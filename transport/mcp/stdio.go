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

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
)

const (
	maxProcesses = 64       // of one gateway; a tenant has at most half of them
	maxQueued    = 512      // messages that the process has not read
	maxUnread    = 32 << 20 // and their bytes
	stderrTail   = 8 << 10
	graceful     = time.Second // between closing its input and killing it
)

var errDead = errors.New("the process has ended")

// process is a running stdio tool server. It leads a process group of its own, which dies
// with it, with us, or when it breaks a rule: it sends a line over 8 MiB, or does not read
// its input. A process that missed a message because the lease was lost is not used again,
// and ends when no caller waits for it.
type process struct {
	cmd *exec.Cmd
	in  *inbox
	out *lines
	err *tail

	ended chan struct{} // closed when the process has ended and its group is dead
	kill  func()        // called once
	files []*os.File    // our ends of the pipes
	free  func()        // gives its place back

	stopping atomic.Bool
}

// start runs a command that the operator allows.
func (g *Gateway) start(command []string, t Target, o *op) (*process, error) {
	if !g.forks.enter(t.Tenant) {
		return nil, &Error{Kind: Unreachable, Message: "too many stdio tool servers are running"}
	}
	p, err := g.spawn(command, t, o)
	if err != nil {
		g.forks.leave(t.Tenant)
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
	p := &process{cmd: cmd, ended: make(chan struct{}), files: []*os.File{inW, outR, errR}, free: func() { g.forks.leave(t.Tenant) }}
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

// wait reaps the process and its children.
func (p *process) wait() error {
	err := p.cmd.Wait()
	p.kill()
	p.free()
	processes.Dec()
	close(p.ended)
	return err
}

// dead reports whether the process is unusable: its output has ended, shortly before it is
// reaped, or it has missed a message.
func (p *process) dead() bool { return p.out.ended.Load() || p.in.missed.Load() }

// ask sends a request through the library, and records in o whether it was written, or may
// have been.
func (p *process) ask(ctx context.Context, o *op, r transport.JSONRPCRequest, by transport.Interface) (*transport.JSONRPCResponse, error) {
	switch {
	case p.in.cutOff.Load():
		return nil, missed()
	case !p.in.live(): // before the process misses a message and becomes unusable for others
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
	switch {
	case err == nil, ctx.Err() != nil, !p.in.cutOff.Load():
		return resp, err
	case sent:
		return nil, suspended(true)
	}
	return nil, missed()
}

// stop ends the process: it closes the input, and kills the process a second later.
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
		f.Close() // ends readers even if a grandchild outside the group holds the other end
	}
}

// explain adds the last line of stderr to a failure to begin.
func (p *process) explain(o *op, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Err == nil {
		if said := o.said(p.err.last()); said != "" {
			e.Err = errors.New(said)
		}
	}
	return err
}

// request is a request whose caller waits for a response. Either it is written, or its caller
// leaves first and it is never written.
type request struct {
	cancel context.CancelFunc
	state  atomic.Int32
}

// Values of request.state.
const (
	queued  = iota
	written // completely or in part
	unwritten
)

// take claims the request for writing; nil is a message without a waiting caller. It fails if
// the caller has left.
func (q *request) take() bool { return q == nil || q.state.CompareAndSwap(queued, written) }

// failed records that at most n bytes of it are written.
func (q *request) failed(n int) {
	if q == nil {
		return
	}
	if n == 0 {
		q.state.Store(unwritten)
	}
	q.cancel()
}

// leave records that the caller has left, and reports whether the request was written.
func (q *request) leave() bool {
	return !q.state.CompareAndSwap(queued, unwritten) && q.state.Load() == written
}

// inbox is the process's standard input: writers never wait for the process.
type inbox struct {
	to     *os.File
	live   func() bool
	queue  chan letter
	kill   func()
	missed atomic.Bool // a message was not written, and none will be written from now on
	cutOff atomic.Bool // the reason is the lost lease

	mu     sync.Mutex // guards the fields below
	asked  map[string]*request
	unread int
	closed bool
}

// letter is one message.
type letter struct {
	text []byte
	of   *request // nil: no caller waits for a response
}

func newInbox(to *os.File, live func() bool, kill func()) *inbox {
	return &inbox{to: to, live: live, queue: make(chan letter, maxQueued), kill: kill, asked: map[string]*request{}}
}

// expect registers the caller of the request with this id, which is written next.
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

// requestID returns the id, as JSON, of a message that is a request, else "". It reads no
// further than necessary: arguments come last.
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
		case "method": // the response to a request of the server has an id too, but not one of ours
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

// pump writes until the inbox closes. After a message that could not be written, nothing more
// is written.
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
			if broken != nil && b.cutOff.Load() { // otherwise the process is about to end
				m.of.failed(n)
				if n > 0 {
					b.kill() // at the end of its input it might take the part for the whole
				}
			}
		}
		b.mu.Lock()
		b.unread -= len(m.text)
		b.mu.Unlock()
	}
	b.to.Close()
}

// lines is the process's standard output. It ends at a line that exceeds the limits of a
// response. The process ends with it.
type lines struct {
	r     *bufio.Reader
	kill  func()
	size  int
	scan  scanner
	broke atomic.Bool // ended by a line over the limits
	ended atomic.Bool
}

// Read implements io.Reader. Every error becomes io.EOF: the library would log others.
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
		l.kill() // a process that can send nothing more is of no use
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

// last returns the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.TrimSpace(string(t.buf))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// forker starts processes on one thread that lives as long as the gateway, because a
// parent-death signal follows the thread that forked.
type forker struct {
	mu   sync.Mutex // guards the fields below
	work chan func()
	done chan struct{}

	places sync.Mutex // guards the fields below
	taken  int
	of     map[id.TenantID]int
}

// enter takes a place for a process of a tenant. It returns false if all are taken, or the
// tenant's half is.
func (f *forker) enter(t id.TenantID) bool {
	f.places.Lock()
	defer f.places.Unlock()
	if f.taken >= maxProcesses || f.of[t] >= maxProcesses/2 {
		return false
	}
	if f.of == nil {
		f.of = map[id.TenantID]int{}
	}
	f.taken++
	f.of[t]++
	return true
}

func (f *forker) leave(t id.TenantID) {
	f.places.Lock()
	defer f.places.Unlock()
	f.taken--
	if f.of[t]--; f.of[t] == 0 {
		delete(f.of, t)
	}
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
