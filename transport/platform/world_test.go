package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
	"agentsvc/transport/edge/sse"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's goroutine for the Date header runs until the process ends.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// noLimits is a rate limiter that admits every request.
type noLimits struct{}

func (noLimits) Tenant(context.Context, id.TenantID) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) IP(context.Context, netip.Addr) (time.Duration, bool, error) { return 0, true, nil }
func (noLimits) User(context.Context, id.TenantID, id.UserID) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) Public(context.Context, netip.Addr) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) RefundIP(netip.Addr) {}

// actors is a fake of threads and runs: it commits as much of their work as the routes see.
type actors struct {
	pool *pgxpool.Pool // system

	versions *Versions // through which a thread finds the version of its agent

	mu    sync.Mutex // guards the fields below
	asked []any
	fail  error
	mute  bool // every Post is refused, as by a node of another version
}

func (a *actors) MintShard() id.Shard { return 77 }

func (a *actors) orders() []any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]any(nil), a.asked...)
}

func (a *actors) failWith(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = err
}

// refusePosts sets whether threads refuse every Post.
func (a *actors) refusePosts(mute bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mute = mute
}

func (a *actors) keep(ctx context.Context, t id.TenantID, i *msg.Idempotency) error {
	if i == nil {
		return nil
	}
	tag, err := a.pool.Exec(ctx, `INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at)
		VALUES ($1, $2, $3, $4, $5, now()) ON CONFLICT DO NOTHING`, t, i.Digest[:], i.Fingerprint[:], i.Status, i.Response)
	if err == nil && tag.RowsAffected() == 0 {
		return journal.ErrReplay
	}
	return err
}

func (a *actors) Ask(ctx context.Context, kind string, t id.TenantID, to id.UUID, order any) (any, error) {
	a.mu.Lock()
	a.asked = append(a.asked, order)
	fail, mute := a.fail, a.mute
	a.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	table := map[string]string{msg.KindThread: "threads WHERE deleted_at IS NULL AND", msg.KindRun: "runs WHERE", msg.KindApproval: "approvals WHERE", msg.KindWorkflow: "workflow_runs WHERE"}[kind]
	var there bool
	if err := a.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table+" tenant_id = $1 AND id = $2)", t, to).Scan(&there); err != nil {
		return nil, err
	}
	switch order.(type) {
	case msg.StartOne, msg.StartWorkflow:
	default:
		if !there {
			return nil, problem.NotFound(kind)
		}
	}
	switch m := order.(type) {
	case msg.Post:
		if mute {
			return msg.Posted{}, nil
		}
		if err := a.speaks(ctx, t, to); err != nil {
			return nil, err
		}
		return msg.Posted{Run: m.Run, Message: m.Message}, a.keep(ctx, t, m.Idempotency)
	case msg.StartOne:
		return msg.Started{Run: m.Run}, a.keep(ctx, t, m.Idempotency)
	case msg.StartWorkflow:
		if err := a.keep(ctx, t, m.Idempotency); err != nil {
			return nil, err
		}
		if _, err := a.pool.Exec(ctx, `INSERT INTO runs (tenant_id, id, status, workflow_id, input, origin_kind, origin_id, created_at) VALUES ($1, $2, 'queued', $3, $4, $5, $6, now())`,
			t, m.Run, m.Workflow, m.Input, m.Origin.Kind, m.Origin.ID); err != nil {
			return nil, err
		}
		_, err := a.pool.Exec(ctx, `INSERT INTO workflow_runs (tenant_id, id, workflow_version, test, variables, owes) VALUES ($1, $2, $3, $4, $5, true)`, t, m.Run, m.Version, m.Test, m.Variables)
		return msg.Started{Run: m.Run}, err
	case msg.InjectEvent:
		return msg.Done{}, a.keep(ctx, t, m.Idempotency)
	case msg.CancelRun:
		return msg.Status{Run: id.RunID{UUID: to}, Status: lifecycle.RunCancelled}, a.keep(ctx, t, m.Idempotency)
	case msg.Decide:
		return msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}, nil
	case msg.DeleteThread:
		_, err := a.pool.Exec(ctx, "UPDATE threads SET deleted_at = now() WHERE tenant_id = $1 AND id = $2", t, to)
		return msg.Done{}, err
	}
	return nil, fmt.Errorf("unexpected %T", order)
}

// speaks finds the published version of a thread's agent as a thread does: it reads the version if
// the node has not cached it.
func (a *actors) speaks(ctx context.Context, t id.TenantID, thread id.UUID) error {
	var agent id.AgentID
	if err := a.pool.QueryRow(ctx, "SELECT agent_id FROM threads WHERE tenant_id = $1 AND id = $2", t, thread).Scan(&agent); err != nil {
		return err
	}
	if a.versions.Published(t, agent) > 0 {
		return nil
	}
	_, err := a.versions.Speaking(ctx, t, agent)
	return err
}

// streams sends one terminal frame with the cursor that the stream was opened with.
type streams struct{ store *store.Store }

func (s streams) Open(ctx context.Context, t id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	if _, _, err := s.store.View(t).RunAndSteps(ctx, run, -1, false); err != nil {
		return nil, err
	}
	return &oneFrame{event.Failed(9, "CURSOR", fmt.Sprintf("%+v", from))}, nil
}

// feeds opens feeds that end with their first frame, which shows the viewer.
type feeds struct {
	mu  sync.Mutex // guards the fields below
	saw []FeedViewer
}

func (f *feeds) Open(_ context.Context, v FeedViewer) (edge.Subscriber, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saw = append(f.saw, v)
	ready, err := event.New(event.FeedReady, event.Pos{}, struct{}{})
	return &oneFrame{ready}, err
}

// last returns the viewer of the last feed.
func (f *feeds) last() FeedViewer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.saw) == 0 {
		return FeedViewer{}
	}
	return f.saw[len(f.saw)-1]
}

type oneFrame struct{ f *event.Frame }

func (o *oneFrame) Attach(c *edge.Conn) { c.Send(o.f); c.Close() }
func (o *oneFrame) Gone()               {}

// guard is an outbound guard that refuses one host.
type guard struct{}

func (guard) CheckURL(_ context.Context, url string) error {
	if strings.Contains(url, "localhost") {
		return errors.New("refused by the outbound guard: not public")
	}
	return nil
}

type party struct {
	tenant id.TenantID
	owner  id.UserID
	key    id.KeyID
	secret string

	agent, draft id.AgentID // with and without a published version
	thread       id.ThreadID
	run          id.RunID
	provider     id.ProviderID
	attachment   id.AttachmentID
	approval     id.ApprovalID

	node       id.NodeID
	server     id.ServerID // requires a bearer token
	connection id.ConnectionID
	grant      id.GrantID
	policy     id.PolicyID

	webhook  id.WebhookID
	delivery id.DeliveryID // has failed
	listener id.WebhookID

	hook       id.TriggerID
	hookSecret string
	schedule   id.TriggerID

	workflow id.WorkflowID // published, with one delay

	base     id.KnowledgeBaseID
	document id.DocumentID // guide.md, which holds hello
	source   id.SourceID   // a website, scheduled
	skill    id.SkillID    // carrier-claim, without grants

	embedKey    id.EmbedKeyID
	publishable string
	endUser     id.EndUserID // external id customer-1
}

type world struct {
	*Platform
	t      testing.TB
	db     *pgtest.DB
	admin  *pgxpool.Pool
	sys    *store.SystemStore
	pool   *pgxpool.Pool // of the routes
	files  *blob.Store
	dir    string // of them
	actors *actors
	tools  *tools
	sent   *deliveries
	feeds  *feeds
	logs   lines
	clock  *clock   // of the sessions
	ended  *endings // of them
	logins *logins
	finder *finder // of what is in knowledge bases
	wakes  *wakes
	table  *edge.Table
	addr   string
	srv    *edge.Server
	a, b   party
}

const manifest = `{"model": {"provider": "simulated", "name": "sim"}}`

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t)}
	v := vault.New(vault.NewSecret32([32]byte{1}))
	w.dir = t.TempDir()
	files, err := blob.New(w.dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	w.admin = w.db.System(t)
	system := w.db.System(t)
	w.sys = store.System(system, v)
	w.actors = &actors{pool: system}
	w.tools = &tools{}
	w.sent, w.feeds = &deliveries{}, &feeds{}
	w.finder, w.wakes = &finder{}, &wakes{}
	w.pool = w.db.API(t)
	w.files = files
	w.clock, w.ended, w.logins = &clock{}, &endings{}, &logins{Directory: store.NewDirectory(system)}
	w.serve(func(r Replays) edge.Replays { return r })
	w.a, w.b = w.newParty(), w.newParty()
	return w
}

// serve starts the platform of w at an address of its own. replays may wrap the store of kept
// responses.
func (w *world) serve(replays func(Replays) edge.Replays) {
	t := w.t
	t.Helper()
	s := store.New(w.pool, vault.New(vault.NewSecret32([32]byte{1})))
	sessions := NewSessions(SessionsConfig{Store: s, PublicURL: console, Now: w.clock.now, Ended: w.ended.note})
	sessions.refusal = 0
	auth := NewAuth(AuthConfig{Keys: StoredKeys(s), Sessions: session{w}})
	log := zerolog.New(io.MultiWriter(zerolog.NewTestWriter(t), &w.logs)).Level(zerolog.WarnLevel)
	w.Platform = New(Config{Log: log, Store: s, Auth: auth, Actors: w.actors, Streams: streams{s}, Feed: w.feeds, Files: w.files, URLs: guard{}, Logins: w.logins, Sessions: sessions, PublicURL: console, Tools: w.tools,
		WebhookURLs: guard{}, Deliveries: w.sent, Searcher: w.finder, Wake: w.wakes.note, SourceURLs: sourceGuard,
		Embedding: func(name string) bool { return name == "deployed" }})
	w.actors.versions = w.Versions
	w.table = edge.NewTable()
	w.Register(w.table)
	edge.HandleOpenAPI(w.table, "/v1/openapi.json", edge.Info{Title: "Test", Version: "1", Tags: Tags})
	srv, err := edge.NewServer(edge.Config{Table: w.table, Auth: auth, Limits: noLimits{}, Replays: replays(Replays{s}), Classify: Classify,
		Log: log, Streams: sse.Config{Heartbeat: time.Hour}, DrainWindow: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr, w.srv = "http://"+ln.Addr().String(), srv
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := errors.Join(srv.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
}

// beside starts a second node of the same service, with its own edge and platform, on the same
// storage.
func (w *world) beside(replays func(Replays) edge.Replays) *world {
	w.t.Helper()
	o := &world{t: w.t, db: w.db, admin: w.admin, sys: w.sys, pool: w.pool, files: w.files, actors: &actors{pool: w.actors.pool}, tools: w.tools, sent: w.sent, feeds: w.feeds, finder: w.finder, wakes: w.wakes,
		clock: w.clock, ended: w.ended, logins: w.logins, a: w.a, b: w.b}
	o.serve(replays)
	return o
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// newParty creates a tenant with one object of each kind.
func (w *world) newParty() (p party) {
	ctx := w.t.Context()
	c, err := w.sys.CreateTenant(ctx, store.NewTenant{Name: "Tenant", OwnerEmail: "o@example.com", KeyName: "first"})
	w.must(err)
	p.tenant, p.owner, p.key, p.secret = c.Tenant, c.Owner, c.Key, c.Secret
	w.must(w.Store.Change(ctx, store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		for _, into := range []*id.AgentID{&p.agent, &p.draft} {
			a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
			w.must(err)
			_, _, err = tx.CreateVersion(ctx, a.ID, json.RawMessage(manifest))
			w.must(err)
			*into = a.ID
		}
		_, _, err := tx.Publish(ctx, p.agent, 1)
		w.must(err)
		p.thread = id.ThreadID{UUID: id.New(5)}
		w.must(tx.CreateThread(ctx, p.thread, p.agent, nil))
		m, err := tx.CreateProvider(ctx, &api.ModelProviderCreate{Slug: "mine", Kind: "openai", BaseURL: "https://x.example", Credentials: api.ProviderCredentials{APIKey: "sk-hidden"}})
		w.must(err)
		p.provider = m.ID
		p.attachment = id.AttachmentID{UUID: id.NewAnywhere()}
		size, sum, err := w.Files.Put(ctx, store.AttachmentFile(p.tenant, p.attachment), strings.NewReader("hello"), 100)
		w.must(err)
		_, err = tx.CreateAttachment(ctx, store.NewAttachment{ID: p.attachment, Name: "hello.html", MediaType: "text/html", SizeBytes: size, SHA256: sum})
		return nil, err
	}))
	w.must(w.giveTools(&p))
	w.must(w.giveWebhook(&p))
	w.must(w.giveTriggers(&p))
	w.must(w.giveWorkflow(&p))
	w.must(w.giveKnowledge(&p))
	w.must(w.giveEmbed(&p))
	p.run = id.RunID{UUID: id.New(5)}
	_, err = w.admin.Exec(ctx, `INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, input, origin_kind, origin_id, created_at)
		VALUES ($1, $2, 'queued', $3, 1, '"hi"', 'api_key', $4, now())`, p.tenant, p.run, p.agent, p.key)
	w.must(err)
	p.approval = w.newApproval(p, nil)
	return p
}

// session accepts three cookies beside the real ones: owner and member, for a's owner in that role,
// and <role>/<user id>, for another person of a.
type session struct{ w *world }

func (s session) knows(cookie string) bool {
	return cookie == "owner" || cookie == "member" || strings.Contains(cookie, "/")
}

func (s session) Authenticate(ctx context.Context, c edge.Credentials) (edge.Identity, error) {
	if role, user, ok := strings.Cut(c.Cookie, "/"); ok {
		u, err := id.Parse(user)
		return edge.Identity{Tenant: s.w.a.tenant, Role: lifecycle.Role(role), Principal: "user:" + user, User: id.UserID{UUID: u}}, err
	}
	if !s.knows(c.Cookie) {
		return s.w.Sessions.Authenticate(ctx, c)
	}
	return edge.Identity{Tenant: s.w.a.tenant, Role: lifecycle.Role(c.Cookie), Principal: "user:" + s.w.a.owner.String(), User: s.w.a.owner}, nil
}

// person makes a request with a cookie.
func (w *world) person(cookie, method, path, body string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.addr+path, strings.NewReader(body))
	w.must(err)
	req.Header.Set("Cookie", "svc_session="+cookie)
	req.Header.Set("X-Svc-CSRF", "1")
	req.Header.Set("Content-Type", "application/json")
	return w.do(req)
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) detail() string {
	text, _ := a.get("detail").(string)
	return text
}

func (a answer) code() string {
	var p struct{ Code string }
	_ = json.Unmarshal([]byte(a.body), &p)
	return p.Code
}

// get returns a member of the answer by its path: "agent.slug", "items.0.id".
func (a answer) get(path string) any {
	var v any
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return nil
	}
	for _, part := range strings.Split(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// call makes a request of the party, with header pairs.
func (w *world) call(p party, method, path, body string, header ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.addr+path, strings.NewReader(body))
	w.must(err)
	req.Header.Set("Authorization", "Bearer "+p.secret)
	req.Header.Set("X-Tenant-Id", p.tenant.String())
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i+1] == "" {
			req.Header.Del(header[i])
		}
	}
	return w.do(req)
}

func (w *world) do(req *http.Request) answer {
	w.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	w.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	w.must(err)
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (w *world) upload(p party, name, mediaType, content string, header ...string) answer {
	w.t.Helper()
	body, form := w.form(upload{name, mediaType, content})
	return w.call(p, "POST", "/v1/attachments", body, append(form, header...)...)
}

// upload is one file of a form.
type upload struct{ name, mediaType, content string }

// form returns the body of an upload, and its header.
func (w *world) form(files ...upload) (body string, header []string) {
	w.t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	for _, f := range files {
		part, err := m.CreatePart(map[string][]string{
			"Content-Disposition": {fmt.Sprintf(`form-data; name="file"; filename=%q`, f.name)}, "Content-Type": {f.mediaType}})
		w.must(err)
		_, err = io.WriteString(part, f.content)
		w.must(err)
	}
	w.must(m.Close())
	return b.String(), []string{"Content-Type", m.FormDataContentType()}
}

// audited returns the numbers of a tenant's audit rows by action.
func (w *world) audited(t id.TenantID) map[string]int {
	w.t.Helper()
	rows, err := w.admin.Query(w.t.Context(), "SELECT action, count(*)::int FROM audit_log WHERE tenant_id = $1 GROUP BY 1", t)
	w.must(err)
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var action string
		var n int
		w.must(rows.Scan(&action, &n))
		out[action] = n
	}
	w.must(rows.Err())
	return out
}
