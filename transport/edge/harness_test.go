package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
	"agentsvc/transport/edge/sse"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's clock for the Date field runs as long as the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// world is a server with a small table and stubs that count.
type world struct {
	t       testing.TB
	srv     *Server
	addr    string
	table   *Table
	auth    *stubAuth
	limits  *stubLimits
	replays *memReplays
	log     *syncBuffer
	subs    chan *feed
	opening func() // while a stream opens

	tenant, other id.TenantID
	thread        id.ThreadID
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// stubAuth knows keys by name: "admin", "owner" and "member" of one tenant.
type stubAuth struct {
	tenant id.TenantID
	mu     sync.Mutex
	away   bool // storage is
	keys   map[string]Identity
	seen   []Credentials
}

func (a *stubAuth) Authenticate(_ context.Context, c Credentials) (Identity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, c)
	if a.away {
		return Identity{}, errStorageAway
	}
	who, ok := a.keys[c.Bearer+c.Cookie]
	if !ok || c.Bearer != "" && c.Tenant != a.tenant.String() {
		return Identity{}, problem.New(problem.CodeUnauthorized, "")
	}
	return who, nil
}

// stubLimits are four buckets.
type stubLimits struct {
	mu                       sync.Mutex
	ip, tenant, user, public int // tokens left; < 0: no limit
	took                     map[string]int
	back                     int
	last                     netip.Addr
	away                     bool // the buckets cannot be reached
}

var errStorageAway = problem.Unavailable("Storage is not available.", time.Second)

var errAway = problem.Unavailable("The rate limit could not be asked for in time.", time.Second)

func (l *stubLimits) Tenant(ctx context.Context, _ id.TenantID) (time.Duration, bool, error) {
	return l.take(ctx, "tenant", &l.tenant, netip.Addr{})
}

func (l *stubLimits) User(ctx context.Context, _ id.TenantID, _ id.UserID) (time.Duration, bool, error) {
	return l.take(ctx, "user", &l.user, netip.Addr{})
}

func (l *stubLimits) IP(ctx context.Context, ip netip.Addr) (time.Duration, bool, error) {
	return l.take(ctx, "ip", &l.ip, ip)
}

func (l *stubLimits) Public(ctx context.Context, ip netip.Addr) (time.Duration, bool, error) {
	return l.take(ctx, "public", &l.public, ip)
}

func (l *stubLimits) take(ctx context.Context, scope string, left *int, ip netip.Addr) (time.Duration, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = ip
	if l.away {
		return 0, false, errAway
	}
	if *left == 0 {
		quota.Note(ctx, quota.Quota{Limit: 5, Reset: 2500 * time.Millisecond})
		return 1200 * time.Millisecond, false, nil
	}
	*left--
	if l.took == nil {
		l.took = map[string]int{}
	}
	l.took[scope]++
	quota.Note(ctx, quota.Quota{Limit: 5, Remaining: int64(*left), Reset: 500 * time.Millisecond})
	return 0, true, nil
}

func (l *stubLimits) RefundIP(netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ip++
	l.back++
}

// counts says how many tokens were taken of which bucket.
func (l *stubLimits) counts() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for scope, n := range l.took {
		all = append(all, fmt.Sprint(scope, " ", n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

type memReplays struct {
	mu   sync.Mutex
	rows map[IdemKey]*Stored
}

func (m *memReplays) Find(_ context.Context, k IdemKey) (*Stored, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows[k], nil
}

// put does what a handler's commit does; it returns ErrReplay to the second caller.
func (m *memReplays) put(i *Idempotency, body []byte) error {
	if i == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows[i.IdemKey] != nil {
		return ErrReplay
	}
	m.rows[i.IdemKey] = &Stored{Fingerprint: i.Fingerprint, Status: i.Status, Body: body}
	return nil
}

// feed is a subscriber that tells what happens to it.
type feed struct {
	conn chan *Conn
	gone chan struct{}
	once sync.Once
	t    testing.TB
}

func newFeed(t testing.TB) *feed {
	return &feed{conn: make(chan *Conn, 1), gone: make(chan struct{}), t: t}
}

func (f *feed) Attach(c *Conn) { f.conn <- c }

func (f *feed) Gone() {
	first := false
	f.once.Do(func() { close(f.gone); first = true })
	if !first {
		f.t.Error("Gone was called twice")
	}
}

func (f *feed) waitGone() {
	f.t.Helper()
	select {
	case <-f.gone:
	case <-time.After(patience):
		f.t.Fatal("the subscriber was not told")
	}
}

// patience is how long a test waits for what must happen: far longer than it
// takes on a machine that is busy with other things.
const patience = time.Minute

type nothing struct{}

type createThread struct {
	Body struct {
		AgentID     id.AgentID         `json:"agent_id"`
		Title       string             `json:"title,omitempty" minLength:"1" maxLength:"200"`
		Attachments []id.MessageID     `json:"attachment_ids,omitempty" maxItems:"8"`
		Deliverable string             `json:"deliverable,omitempty" enum:"xlsx,pptx,html"`
		Slug        string             `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$"`
		Minutes     float64            `json:"minutes,omitempty" minimum:"0" maximum:"525600"`
		Count       int                `json:"count,omitempty"`
		Other       int                `json:"other_count,omitempty"`
		Meta        json.RawMessage    `json:"meta,omitempty"`
		Nested      *nested            `json:"nested,omitempty" null:"true"`
		Node        api.Opt[id.NodeID] `json:"node_id,omitzero"`
		Since       *time.Time         `json:"since,omitempty"`
		Until       *time.Time         `json:"until,omitempty" nullable:"true"`
		Emoji       *string            `json:"emoji,omitempty"`
		Tags        *[]string          `json:"tags,omitempty"`
		By          *id.NodeID         `json:"by,omitempty"`
		Part        *nested            `json:"part,omitempty"`
	}
}

type nested struct {
	Name string `json:"name" minLength:"1"`
}

type thread struct {
	ID     id.ThreadID     `json:"id"`
	Title  *string         `json:"title"`
	Meta   json.RawMessage `json:"meta,omitempty"`
	Nested *nested         `json:"nested"`
	NodeID string          `json:"node"`
	Cookie string          `json:"-" header:"Set-Cookie"`
}

type listThreads struct {
	api.Page
	Status lifecycle.RunStatus `query:"status"`
	Agent  *id.AgentID         `query:"agent_id"`
	Since  int                 `query:"since" minimum:"-1"`
	Deep   bool                `query:"deep"`
}

type oneThread struct {
	ID id.ThreadID `path:"id"`
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, table: NewTable(), subs: make(chan *feed, 64), log: &syncBuffer{},
		tenant: id.TenantID{UUID: id.NewAnywhere()}, other: id.TenantID{UUID: id.NewAnywhere()}, thread: id.ThreadID{UUID: id.NewAnywhere()},
		limits: &stubLimits{ip: -1, tenant: -1, user: -1, public: -1}, replays: &memReplays{rows: map[IdemKey]*Stored{}}}
	w.auth = &stubAuth{tenant: w.tenant, keys: map[string]Identity{}}
	for _, r := range []lifecycle.Role{lifecycle.RoleMember, lifecycle.RoleAdmin, lifecycle.RoleOwner} {
		w.auth.keys[string(r)] = Identity{Tenant: w.tenant, Role: r, Principal: "apikey:" + string(r), Key: id.KeyID{UUID: id.NewAnywhere()}}
		w.auth.keys["session-"+string(r)] = Identity{Tenant: w.tenant, Role: r, Principal: "user:" + string(r), User: id.UserID{UUID: id.NewAnywhere()}}
	}
	Enum(w.table, lifecycle.RunStatuses...)
	w.routes()
	cfg := Config{Table: w.table, Auth: w.auth, Limits: w.limits, Replays: w.replays,
		Log: zerolog.New(w.log).Level(zerolog.InfoLevel), Metrics: prometheus.NewRegistry(),
		Streams: sse.Config{Heartbeat: time.Hour}, DrainWindow: 50 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if w.srv, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := w.srv.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return w
}

func (w *world) routes() {
	HandleOpenAPI(w.table, "/v1/openapi.json", Info{Title: "Agent Platform Service", Version: "1", Description: "Test.",
		Tags: []Tag{{"Threads", "Conversations."}, {"Service", "The service itself."}}})
	HandleHealth(w.table, "/healthz", "health", "Health", func(context.Context) error { return nil })
	Handle(w.table, Route{Method: "POST", Path: "/v1/threads", ID: "createThread", Summary: "Start a conversation", Tag: "Threads", Role: lifecycle.RoleMember,
		Idempotent: true, Example: map[string]any{"agent_id": "0198c0de-0000-7000-8000-000000000000"}},
		func(_ context.Context, c *Caller, in *createThread) (*thread, error) {
			out := &thread{ID: w.thread, Meta: in.Body.Meta, Nested: in.Body.Nested}
			if in.Body.Title != "" {
				out.Title = &in.Body.Title
			}
			if n, ok := in.Body.Node.Get(); ok {
				out.NodeID = n.String()
			} else if in.Body.Node.Null {
				out.NodeID = "null"
			}
			body, err := Encode(out)
			if err != nil {
				return nil, err
			}
			return out, w.replays.put(c.Idem, body)
		})
	Handle(w.table, Route{Method: "GET", Path: "/v1/threads", ID: "listThreads", Summary: "List threads", Tag: "Threads", Role: lifecycle.RoleMember},
		func(_ context.Context, c *Caller, in *listThreads) (*api.List[thread], error) {
			var pos int
			if _, err := in.From("threads", &pos); err != nil {
				return nil, err
			}
			l := api.Paged(make([]thread, 3), in.Size(), false, "threads", func(thread) any { return 7 })
			return &l, nil
		})
	Handle(w.table, Route{Method: "GET", Path: "/v1/threads/{id}", ID: "getThread", Summary: "Read a thread", Tag: "Threads", Role: lifecycle.RoleMember},
		func(_ context.Context, _ *Caller, in *oneThread) (*thread, error) {
			if in.ID != w.thread {
				return nil, problem.NotFound("thread")
			}
			return &thread{ID: in.ID, Cookie: "a=b"}, nil
		})
	Handle(w.table, Route{Method: "DELETE", Path: "/v1/threads/{id}", ID: "deleteThread", Summary: "Delete a thread", Tag: "Threads", Role: lifecycle.RoleAdmin},
		func(_ context.Context, _ *Caller, in *oneThread) (*Empty, error) { return nil, nil })
	Handle(w.table, Route{Method: "PATCH", Path: "/v1/tenant", ID: "patchTenant", Summary: "Change the tenant", Tag: "Service", Role: lifecycle.RoleOwner},
		func(context.Context, *Caller, *struct {
			Body struct {
				Name api.Opt[string] `json:"name,omitzero" minLength:"1"`
			} `required:"false"`
		}) (*Empty, error) {
			return nil, nil
		})
	Handle(w.table, Route{Method: "POST", Path: "/v1/poke", ID: "poke", Summary: "Take no body", Tag: "Service", Role: lifecycle.RoleMember, Idempotent: true},
		func(context.Context, *Caller, *nothing) (*nothing, error) { return nil, nil })
	Handle(w.table, Route{Method: "POST", Path: "/v1/boom/{how}", ID: "boom", Summary: "Fail", Tag: "Service", Role: lifecycle.RoleMember},
		func(_ context.Context, _ *Caller, in *struct {
			How string `path:"how"`
		}) (*Empty, error) {
			switch in.How {
			case "panic":
				panic("secret detail")
			case "deadline":
				return nil, context.DeadlineExceeded
			case "storage":
				return nil, errStorage
			}
			return nil, fmt.Errorf("secret detail")
		})
	HandleStream(w.table, Route{Method: "GET", Path: "/v1/runs/{id}/events", ID: "runEvents", Summary: "Follow a run", Tag: "Threads", Role: lifecycle.RoleMember,
		Frames: []Frame{{event.LLMDelta, struct {
			Idx  int    `json:"idx"`
			Text string `json:"text"`
		}{}, "Live text."}, {event.Heartbeat, nil, ""}}},
		func(_ context.Context, c *Caller, in *struct {
			ID   id.RunID `path:"id"`
			Last string   `header:"Last-Event-ID"`
		}) (Subscriber, error) {
			if in.Last == "refuse" {
				return nil, problem.NotFound("run")
			}
			if w.opening != nil {
				w.opening()
			}
			f := newFeed(w.t)
			w.subs <- f
			return f, nil
		})
	HandleUpload(w.table, Route{Method: "POST", Path: "/v1/attachments", ID: "upload", Summary: "Upload a file", Tag: "Threads", Role: lifecycle.RoleMember,
		Idempotent: true, MaxFile: 100 << 10, MaxFiles: 2, Status: 201},
		func(_ context.Context, c *Caller, _ *nothing, up *Upload) (*api.Items[string], error) {
			var l api.Items[string]
			for {
				f, err := up.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					return nil, err
				}
				n, err := io.Copy(io.Discard, f)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, fmt.Sprintf("%s %s %d", f.Name, f.MediaType, n))
			}
			body, err := Encode(&l)
			if err != nil {
				return nil, err
			}
			return &l, w.replays.put(c.Idem, body)
		})
	HandleDownload(w.table, Route{Method: "GET", Path: "/v1/files/{name...}", ID: "download", Summary: "Read a file", Tag: "Threads", Role: lifecycle.RoleMember, MediaType: "image/jpeg"},
		func(_ context.Context, _ *Caller, in *struct {
			Name string `path:"name"`
		}) (*Download, error) {
			return &Download{Name: in.Name, MediaType: "image/jpeg", Size: 5, Body: io.NopCloser(strings.NewReader("hello"))}, nil
		})
	HandleRaw(w.table, Route{Method: "POST", Path: "/hooks/{trigger}", ID: "hook", Summary: "A hook", Tag: "Service", Status: 202, MediaType: "application/json"},
		func(_ context.Context, _ *Caller, in *Raw) (*RawAnswer, error) {
			return &RawAnswer{ContentType: "application/json", Body: []byte(`{"trigger":"` + in.Param("trigger") + `","sig":"` + in.Header("X-Sig") + `","n":` + fmt.Sprint(len(in.Body)) + `}`)}, nil
		})
}

var errStorage = fmt.Errorf("connection to storage refused")

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	close  bool // the server says that it closes the connection
}

func (a answer) problem(t testing.TB) (p struct {
	Type, Title, Code, Detail string
	Status                    int
	RetryAfter                int `json:"retry_after"`
}) {
	t.Helper()
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("content type %q of %d %s", ct, a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	if p.Status != a.status || p.Type != "about:blank" || p.Title == "" {
		t.Fatalf("malformed problem %s for %d", a.body, a.status)
	}
	return p
}

// raw sends bytes and reads one answer.
func (w *world) raw(request string) (answer, error) {
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	return exchange(c, bufio.NewReader(c), request)
}

func exchange(c net.Conn, r *bufio.Reader, request string) (answer, error) {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		return answer{}, err
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), resp.Close}, err
}

// call sends a well-formed request as "member" unless the headers say otherwise.
func (w *world) call(method, path, body string, headers ...string) answer {
	w.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", method, path)
	all := strings.Join(headers, "\n")
	if !strings.Contains(all, "Authorization") {
		b.WriteString("Authorization: Bearer member\r\n")
	}
	if !strings.Contains(all, "X-Tenant-Id") {
		b.WriteString("X-Tenant-Id: " + w.tenant.String() + "\r\n")
	}
	if !strings.Contains(all, "Content-Type") && body != "" {
		b.WriteString("Content-Type: application/json\r\n")
	}
	for _, h := range headers {
		if !strings.HasSuffix(h, ": -") {
			b.WriteString(h + "\r\n")
		}
	}
	if body != "" || method == "POST" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n" + body)
	a, err := w.raw(b.String())
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}
