package blackbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/cmd/svc/clitest"
	"agentsvc/persistence/pgtest"
)

// bed is a service of some nodes and what they stand on. Each of its processes
// may be killed and stopped, and each way between them cut.
type bed struct {
	t     *testing.T
	lease time.Duration
	pg    *pgtest.Cluster
	admin *pgxpool.Pool
	redis *redisServer
	nodes []*member
	desk  *node // runs management commands, over a link that no test cuts
	book  *book
	net   network // between the nodes; nil: fronts
	over  chan struct{}
	loops sync.WaitGroup

	callers sync.Map // members by both ends of a connection of theirs that a server of the test's has not accepted yet
}

// network is what lies between nodes that are not all in this machine's own one.
type network interface {
	addr(node int) string
	wrapper(node int, binary string) string
	listen(node int, addr string) (net.Listener, error)
	database(port string) string
	part(x, y int, to cut)
	cutOff(node int, to cut)
}

// member is one node of a bed, over all its processes.
type member struct {
	*node
	i                      int
	name                   string
	bed                    *bed
	database, cache, peers *front
	listener               string // where peers listens behind its front
	healthy                atomic.Bool
	starting               sync.Mutex // one process at a time

	mu    sync.Mutex // guards lives
	lives []*life
}

// life is one process of a member.
type life struct {
	pid          int
	begun, ended time.Time // ended: zero while it lives
	expected     bool      // the storm ends it, or has made it end itself
	log          *clitest.Output
}

// heartbeat of the streams of a bed: a reader that hears nothing for some of them
// goes elsewhere.
const heartbeat = time.Second

// newBed prepares a bed whose nodes do not run yet. One node is no cluster. Tests of several nodes are not parallel:
// side by side they would starve each other on a small machine, and their leases and limits of time would end.
func newBed(t *testing.T, size int, lease time.Duration, env ...string) *bed {
	t.Helper()
	return newBedOn(t, nil, size, lease, env...)
}

func newBedOn(t *testing.T, between network, size int, lease time.Duration, env ...string) *bed {
	t.Helper()
	b := &bed{t: t, lease: lease, book: newBook(), net: between, over: make(chan struct{})}
	b.pg = pgtest.Private(t, pgtest.PrivateOptions{Fsync: true, Settings: map[string]string{"max_connections": "300"}})
	b.admin = b.pg.Admin(t)
	b.redis = newRedis(t)
	database, err := url.Parse(b.pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	socket := database.Query().Get("host")
	if socket == "" {
		t.Fatalf("the database is not at a socket")
	}
	dir := dataDir(t)
	env = append([]string{"SVC_MASTER_KEY=" + strings.Repeat("c3Rvcm1z", 5) + "c3Q=", "SVC_OUTBOUND_ALLOW=127.0.0.0/8", behindProxy, "SVC_SSE_HEARTBEAT=" + heartbeat.String(),
		"SVC_CLUSTER_LEASE=" + lease.String(), "SVC_WEBHOOK_BACKOFF=" + hookBackoff.String(), "SVC_WEBHOOK_TIMEOUT=" + hookTimeout.String()}, env...)
	for i := range size {
		m := &member{i: i, name: string(rune('a' + i)), bed: b}
		m.database = m.beforeDatabase(func() (net.Conn, error) { return net.Dial("unix", filepath.Join(socket, ".s.PGSQL.5432")) })
		own := []string{"SVC_DATABASE_URL=" + atAddress(database, m.database.addr, m.name)}
		if size > 1 {
			m.cache = m.front(func() (net.Conn, error) { return net.Dial("unix", b.redis.socket) })
			m.listener = reserved(t)
			if between == nil {
				m.peers = newFront(t, func() (net.Conn, error) { return net.Dial("tcp", m.listener) }, b.nameOf)
				m.peers.shut()
				b.divert(m.listener, m.peers.addr)
			} else {
				m.listener = between.addr(i) + ":7946"
			}
			own = append(own, "SVC_CLUSTER_ADDR="+m.listener, "SVC_CLUSTER_SECRET="+strings.Repeat("storm ", 8), "SVC_REDIS_URL=redis://"+m.cache.addr+"/0")
		}
		m.node = newNode(t, append(append([]string{"SVC_DATA_DIR=" + dir}, env...), own...)...)
		if between != nil {
			m.addr = between.addr(i) + ":8080"
			m.base, m.file = "http://"+m.addr, between.wrapper(i, binary(t))
			m.env = append(m.env, "SVC_ADDR="+m.addr)
		}
		b.nodes = append(b.nodes, m)
	}
	first := b.nodes[0].process
	b.desk = &node{t, &process{addr: first.addr, base: first.base, env: append(first.env[:len(first.env):len(first.env)], "SVC_DATABASE_URL="+b.pg.URL)}}
	t.Cleanup(b.end)
	return b
}

// front is one at which the node finds what is behind it.
func (m *member) front(dial func() (net.Conn, error)) *front {
	m.bed.t.Helper()
	if m.bed.net == nil {
		return newFront(m.bed.t, dial, nil)
	}
	return newFrontAt(m.bed.t, reserved(m.bed.t), func(addr string) (net.Listener, error) { return m.bed.net.listen(m.i, addr) }, dial, nil)
}

// beforeDatabase is the front at which the node finds Postgres. Where the node has a
// network of its own, that is outside of it.
func (m *member) beforeDatabase(dial func() (net.Conn, error)) *front {
	m.bed.t.Helper()
	if m.bed.net == nil {
		return newFront(m.bed.t, dial, nil)
	}
	_, port, err := net.SplitHostPort(reserved(m.bed.t))
	if err != nil {
		m.bed.t.Fatal(err)
	}
	return newFrontAt(m.bed.t, m.bed.net.database(port), func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }, dial, nil)
}

// shows has the nodes find a server of this machine's own network under its own
// address, and says which process has dialled.
func (b *bed) shows(addr string) {
	b.t.Helper()
	if b.net == nil {
		return
	}
	for _, m := range b.nodes {
		newFrontAt(b.t, addr, func(addr string) (net.Listener, error) { return b.net.listen(m.i, addr) }, func() (net.Conn, error) {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				b.callers.Store([2]string{c.LocalAddr().String(), addr}, m)
			}
			return c, err
		}, nil)
	}
}

// caller is the process that has dialled a server of the test's, 0 for none. It is
// asked once for each connection: another one may have the same port later.
func (b *bed) caller(c net.Conn) int {
	if b.net != nil {
		// The dialler notes the connection only once it is established.
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range 1000 {
			if m, ok := b.callers.LoadAndDelete([2]string{c.RemoteAddr().String(), c.LocalAddr().String()}); ok {
				return m.(*member).pid()
			}
			<-tick.C
		}
		return 0
	}
	var pids []int
	for _, m := range b.nodes {
		pids = append(pids, m.pid())
	}
	return dialler(c, pids)
}

// atAddress is a connection string by a port of this machine instead of a socket,
// whose sessions say which node they are of.
func atAddress(u *url.URL, addr, name string) string {
	at := *u
	q := at.Query()
	q.Del("host")
	q.Set("sslmode", "disable")
	q.Set("options", "-cbed.node="+name)
	at.Host, at.RawQuery = addr, q.Encode()
	return at.String()
}

// divert has the members read the address of a front where one of them has
// written its own: what they send each other crosses the front.
func (b *bed) divert(from, to string) {
	b.t.Helper()
	for _, sql := range []string{
		`CREATE TABLE IF NOT EXISTS bed_fronts (address text PRIMARY KEY, front text NOT NULL)`,
		`CREATE OR REPLACE FUNCTION bed_front() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			$$ BEGIN NEW.address := COALESCE((SELECT front FROM public.bed_fronts WHERE address = NEW.address), NEW.address); RETURN NEW; END $$`,
		`CREATE OR REPLACE TRIGGER bed_front BEFORE INSERT OR UPDATE OF address ON members FOR EACH ROW EXECUTE FUNCTION bed_front()`,
		fmt.Sprintf(`INSERT INTO bed_fronts VALUES ('%s', '%s')`, from, to),
	} {
		if _, err := b.admin.Exec(b.t.Context(), sql); err != nil {
			b.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// start runs all nodes and waits until each is ready.
func (b *bed) start() {
	b.t.Helper()
	joins := &unrest{from: time.Now()}
	if len(b.nodes) > 1 {
		joins.grace = movesWithin
	}
	b.book.disturbed(joins)
	for _, m := range b.nodes {
		m.begin()
		b.loops.Go(m.examine)
	}
	for _, m := range b.nodes {
		if err := m.ready(time.Minute); err != nil {
			b.t.Fatal(err)
		}
	}
	eventually(b.t, within(b.t, 15*time.Second), "all nodes are healthy", func() bool { return len(b.healthy()) == len(b.nodes) })
	b.book.calms(joins, true)
}

// end stops what watches the nodes; newNode's clean-up ends their processes.
func (b *bed) end() {
	close(b.over)
	for _, m := range b.nodes {
		m.expect()
		m.signal(syscall.SIGCONT, 0)
	}
	b.loops.Wait()
	if b.t.Failed() {
		b.t.Logf("what happened:\n%s", b.book.events())
		for _, m := range b.nodes {
			text := m.logged()
			b.t.Logf("the end of node %s's log:\n%s", m.name, text[max(0, len(text)-8<<10):])
		}
	}
}

// begin starts a process of the member unless one lives.
func (m *member) begin(env ...string) {
	m.starting.Lock()
	defer m.starting.Unlock()
	if m.alive() {
		return
	}
	m.launch(env...)
	m.node.mu.Lock()
	l := &life{pid: m.cmd.Process.Pid, begun: time.Now(), log: m.log}
	end := m.end
	m.node.mu.Unlock()
	m.mu.Lock()
	m.lives = append(m.lives, l)
	m.mu.Unlock()
	m.bed.book.event("node %s begins as %d", m.name, l.pid)
	m.bed.loops.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for m.peers != nil && !listens(m.listener) {
			select {
			case <-tick.C:
				continue
			case <-end:
			case <-m.bed.over:
			}
			break
		}
		if m.peers != nil {
			if err := m.peers.open(); err != nil {
				m.t.Error(err)
			}
		}
		select {
		case <-end:
		case <-m.bed.over:
			return
		}
		if m.peers != nil {
			m.peers.shut()
		}
		m.mu.Lock()
		l.ended = time.Now()
		expected := l.expected
		m.mu.Unlock()
		m.healthy.Store(false)
		m.bed.book.event("node %s, %d, has ended", m.name, l.pid)
		for line := range strings.Lines(l.log.String()) {
			if strings.Contains(line, `"level":"error"`) {
				m.bed.book.event("node %s, %d, had logged %s", m.name, l.pid, strings.TrimSpace(line))
			}
		}
		if !expected {
			text := l.log.String()
			m.bed.book.breaks(lawLives, "node %s ended by itself: %s", m.name, text[max(0, len(text)-4<<10):])
		}
	})
}

// life is the member's last process, nil before the first one.
func (m *member) life() *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lives) == 0 {
		return nil
	}
	return m.lives[len(m.lives)-1]
}

func (m *member) pid() int {
	if l := m.life(); l != nil {
		return l.pid
	}
	return 0
}

// expect says that the process may end from here on.
func (m *member) expect() {
	if l := m.life(); l != nil {
		m.mu.Lock()
		l.expected = true
		m.mu.Unlock()
	}
}

func (m *member) alive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lives) > 0 && m.lives[len(m.lives)-1].ended.IsZero()
}

// kill ends the process without a word.
func (m *member) kill() {
	m.expect()
	m.healthy.Store(false)
	m.bed.book.event("node %s is killed", m.name)
	if err := m.signal(syscall.SIGKILL, time.Minute); err != nil {
		m.t.Error(err)
	}
	m.gone()
}

// gone waits until it is noted that the process has ended.
func (m *member) gone() {
	m.t.Helper()
	eventually(m.t, within(m.t, 10*time.Second), "the end of node "+m.name+" is noted", func() bool { return !m.alive() })
}

// term ends the process in order and says how long that took.
func (m *member) term() time.Duration {
	m.expect()
	m.bed.book.event("node %s is told to end", m.name)
	begun := time.Now()
	err := m.signal(syscall.SIGTERM, time.Minute)
	e := termination{time.Since(begun), m.exit(), err}
	m.gone()
	m.bed.book.rule(lawSigterm, e.ok(), "node %s ended %s after SIGTERM with code %d, %v", m.name, e.took, e.code, e.err)
	return e.took
}

// termination is how a process has ended that was told to.
type termination struct {
	took time.Duration
	code int
	err  error
}

// drainTime is what nodes have for what they have begun, by default.
const drainTime = 30 * time.Second

func (e termination) ok() bool {
	return e.err == nil && e.took <= drainTime+10*time.Second && e.code == 0
}

// back waits until the member is ready, and starts it where it has ended.
func (m *member) back(ctx context.Context) {
	m.t.Helper()
	eventually(m.t, ctx, "node "+m.name+" is back", func() bool {
		if !m.alive() {
			m.begin()
		}
		return m.healthy.Load() && m.alive()
	})
}

// examine does what a load balancer does: it asks whether the node is ready.
func (m *member) examine() {
	probe := &http.Client{Timeout: 500 * time.Millisecond, Transport: &http.Transport{}}
	defer probe.CloseIdleConnections()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := probe.Get(m.base + "/readyz")
		if err == nil {
			resp.Body.Close()
		}
		if is := err == nil && resp.StatusCode == http.StatusOK; m.healthy.Swap(is) != is {
			m.bed.book.event("node %s is ready: %t", m.name, is)
		}
		select {
		case <-tick.C:
		case <-m.bed.over:
			return
		}
	}
}

func (b *bed) healthy() []*member {
	var out []*member
	for _, m := range b.nodes {
		if m.healthy.Load() && m.alive() {
			out = append(out, m)
		}
	}
	return out
}

// nameOf is which member has dialled.
func (b *bed) nameOf(c net.Conn) string {
	for _, m := range b.nodes {
		if pid := m.pid(); pid != 0 && dialler(c, []int{pid}) == pid {
			return m.name
		}
	}
	return ""
}

// chosen is the key of a context whose requests go to one member.
type chosen struct{}

// telling is the key of a context that says what its requests are a part of.
type telling struct{}

// on has requests go to this member.
func (m *member) on(ctx context.Context) context.Context {
	return context.WithValue(ctx, chosen{}, m)
}

// client is c, whose requests go to any node and are kept in the book.
func (b *bed) client(c *caller, book *book) *caller {
	any := *c
	any.HTTP = &http.Client{Transport: &spread{bed: b, book: book, served: map[string]*member{}, base: &http.Transport{
		MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext,
	}}}
	b.t.Cleanup(any.HTTP.CloseIdleConnections)
	return &any
}

// spread sends each request to another node, as a load balancer does, and gives
// requests up as a careful client does: a stream whose heartbeats stay away,
// another one after some time.
type spread struct {
	bed  *bed
	book *book
	base *http.Transport
	lie  *lie // what it does wrong, nil: nothing

	mu     sync.Mutex         // guards served
	served map[string]*member // the member that served the last stream of a path
}

const (
	patience      = 12 * time.Second // with an answer
	streamSilence = 5 * heartbeat
)

func (s *spread) CloseIdleConnections() { s.base.CloseIdleConnections() }

// pick prefers nodes that are ready, and for a resumed stream another one than
// that which has broken it.
func (s *spread) pick(r *http.Request) *member {
	if m, ok := r.Context().Value(chosen{}).(*member); ok {
		return m
	}
	from := s.bed.healthy()
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		s.mu.Lock()
		before := s.served[r.URL.Path]
		s.mu.Unlock()
		if i := slices.Index(from, before); i >= 0 && len(from) > 1 {
			from = slices.Delete(from, i, i+1)
		}
	}
	if len(from) == 0 {
		from = s.bed.nodes
	}
	return from[rand.IntN(len(from))]
}

func (s *spread) RoundTrip(r *http.Request) (*http.Response, error) {
	m := s.pick(r)
	live := isStream(r)
	limit := patience
	if live {
		limit = streamSilence
	}
	ctx, cancel := context.WithCancel(r.Context())
	a := &exchange{at: time.Now(), node: m, pid: m.pid(), method: r.Method, path: r.URL.Path, key: r.Header.Get("Authorization"), live: live}
	a.story, _ = r.Context().Value(telling{}).(string)
	a.bucket, _ = r.Context().Value(drawing{}).(string)
	if s.lie != nil {
		r = s.lie.asks(r)
	}
	s.book.asks(a)
	to := r.Clone(ctx)
	to.URL.Host, to.Host = m.addr, m.addr
	timer := time.AfterFunc(limit, cancel)
	resp, err := s.base.RoundTrip(to)
	if err != nil {
		timer.Stop()
		cancel()
		a.err = err
		s.book.note(a)
		return nil, fmt.Errorf("node %s: %w", m.name, err)
	}
	if s.lie != nil {
		s.lie.answers(r, resp)
	}
	a.status, a.retry = resp.StatusCode, retryAfter(resp.Header)
	if live && resp.StatusCode == http.StatusOK {
		a.resumes = s.resume(r, m)
	}
	resp.Body = &hearing{ReadCloser: resp.Body, timer: timer, limit: limit, done: func(err error) {
		timer.Stop()
		cancel()
		a.err = err
		s.book.note(a)
		if a.status == http.StatusInternalServerError {
			s.bed.loops.Go(func() { s.explain(a, resp.Header.Get("X-Request-Id")) })
		}
	}}
	return resp, nil
}

// explain notes what a node has logged of a request that it answered 500.
func (s *spread) explain(a *exchange, request string) {
	a.node.mu.Lock()
	l := a.node.lives[len(a.node.lives)-1]
	a.node.mu.Unlock()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(2 * time.Second); ; { // the line is written after the answer
		for line := range strings.Lines(l.log.String()) {
			if strings.Contains(line, request) {
				s.book.event("node %s (%d) answered %s %s with 500: %s", a.node.name, a.pid, a.method, a.path, strings.TrimSpace(line))
				return
			}
		}
		select {
		case <-tick.C:
		case <-s.bed.over:
			return
		}
		if time.Now().After(limit) {
			s.book.event("node %s (%d) answered %s %s with 500 and logged nothing", a.node.name, a.pid, a.method, a.path)
			return
		}
	}
}

// resume notes which member serves a stream, and reports whether it is another one than before.
func (s *spread) resume(r *http.Request, m *member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.served[r.URL.Path]
	s.served[r.URL.Path] = m
	return r.Header.Get("Last-Event-ID") != "" && before != nil && before != m
}

// hearing is the body of an answer while it is read.
type hearing struct {
	io.ReadCloser
	timer *time.Timer
	limit time.Duration
	err   error // why it broke off
	once  sync.Once
	done  func(error)
}

func (h *hearing) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if n > 0 && h.limit == streamSilence {
		h.timer.Reset(h.limit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	if err != nil {
		h.once.Do(func() { h.done(h.err) })
	}
	return n, err
}

func (h *hearing) Close() error {
	h.once.Do(func() { h.done(h.err) })
	return h.ReadCloser.Close()
}

// redisServer is a Redis that keeps nothing.
type redisServer struct {
	t      *testing.T
	dir    string
	socket string
	cmd    *exec.Cmd
	end    chan struct{}
}

func newRedis(t *testing.T) *redisServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "svc-redis-") // a short way: a socket's name has at most 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &redisServer{t: t, dir: dir, socket: filepath.Join(dir, "s")}
	r.start()
	t.Cleanup(r.kill)
	return r
}

func (r *redisServer) start() {
	r.t.Helper()
	file, err := exec.LookPath("redis-server")
	if err != nil {
		r.t.Fatal("install the package redis-server: ", err)
	}
	var out clitest.Output
	r.cmd = exec.Command(file, "--port", "0", "--unixsocket", r.socket, "--save", "", "--appendonly", "no", "--dir", r.dir)
	r.cmd.Stdout, r.cmd.Stderr = &out, &out
	if r.end, err = startChild(r.cmd); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, within(r.t, 10*time.Second), "Redis answers", func() bool {
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			return false
		}
		defer c.Close()
		fmt.Fprint(c, "PING\r\n")
		answer := make([]byte, 16)
		n, err := c.Read(answer)
		return err == nil && bytes.HasPrefix(answer[:n], []byte("+PONG"))
	})
}

func (r *redisServer) kill() {
	select {
	case <-r.end:
	default:
		r.cmd.Process.Kill()
		<-r.end
	}
}

// metric is one number of a node's metrics, and whether it was there.
func (m *member) metric(name string) (float64, bool) {
	resp, err := http.Get(m.base + "/metrics")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, err := strconv.ParseFloat(v, 64)
			return n, err == nil
		}
	}
	return 0, false
}
