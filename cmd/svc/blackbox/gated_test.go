package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"

	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/pgtest"
)

// Stories of tool calls that wait for people, told to the real binary over HTTP
// with a tool server that outlives it. The crash tests tell them over kills; what
// they must come to says verdict.

// toolCall is one line of the tool server's log.
type toolCall struct {
	At   time.Time `json:"at"`
	Tool string    `json:"tool"`
	Args string    `json:"args"` // the bytes that came
}

// callLog is what a tool server was asked to do. A call is on the disk before it
// is carried out.
type callLog struct {
	mu   sync.Mutex // guards file
	file *os.File
}

func (l *callLog) note(tool string, args []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := json.Marshal(toolCall{time.Now(), tool, string(args)})
	if err != nil {
		return err
	}
	if _, err := l.file.Write(append(b, '\n')); err != nil {
		return err
	}
	return l.file.Sync()
}

// byOrder reads the log: every order is of one call of one story.
func (l *callLog) byOrder(t *testing.T) map[string][]toolCall {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := os.ReadFile(l.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]toolCall{}
	for line := range bytes.Lines(b) {
		var c toolCall
		var args struct{ Order string }
		if err := errors.Join(json.Unmarshal(line, &c), json.Unmarshal([]byte(c.Args), &args)); err != nil || args.Order == "" {
			t.Fatalf("the tool server was called with %s: %v", line, err)
		}
		out[args.Order] = append(out[args.Order], c)
	}
	return out
}

// toolTime is how long a call takes, so that kills meet it.
const toolTime = 15 * time.Millisecond

// newTools is a tool server with orders.refund, which takes an idempotency_key,
// orders.cancel, which may not be repeated, and orders.get, which only reads.
func newTools(t *testing.T) (url string, log *callLog) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "calls.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	log = &callLog{file: file}
	work := func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		timer := time.NewTimer(toolTime)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return mcp.NewToolResultText(`{"done":true}`), nil
	}
	m := mcpserver.NewMCPServer("Orders", "1.0.0", mcpserver.WithToolCapabilities(false))
	order := mcp.WithString("order", mcp.Required(), mcp.MinLength(1))
	closed := mcp.WithSchemaAdditionalProperties(false)
	m.AddTool(mcp.NewTool("orders.refund", order, mcp.WithNumber("amount", mcp.Required()), mcp.WithString("idempotency_key"), closed,
		mcp.WithReadOnlyHintAnnotation(false), mcp.WithIdempotentHintAnnotation(false)), work)
	m.AddTool(mcp.NewTool("orders.cancel", order, mcp.WithNumber("amount", mcp.Required()), closed,
		mcp.WithReadOnlyHintAnnotation(false), mcp.WithIdempotentHintAnnotation(false)), work)
	m.AddTool(mcp.NewTool("orders.get", order, closed, mcp.WithReadOnlyHintAnnotation(true)), work)
	speaks := mcpserver.NewStreamableHTTPServer(m, mcpserver.WithStateLess(true), mcpserver.WithStreamableHTTPLogger(slog.New(slog.DiscardHandler)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller was killed while it sent
		}
		var asked struct {
			Method string
			Params struct {
				Name      string
				Arguments json.RawMessage
			}
		}
		if json.Unmarshal(body, &asked) == nil && asked.Method == "tools/call" {
			if err := log.note(asked.Params.Name, asked.Params.Arguments); err != nil {
				t.Errorf("the tool server's log: %v", err)
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		speaks.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/mcp", log
}

// fate is what becomes of one gated call.
type fate string

const (
	isApproved  fate = "approved"
	isEdited    fate = "edited"
	isRejected  fate = "rejected"
	isResponded fate = "responded"
	isExpired   fate = "expired"
	isCancelled fate = "cancelled" // with its run, while it waits
	inBulk      fate = "approved in bulk"
	// In a race the first of the two decides the approval.
	approveOrCancel fate = "approved or cancelled"
	approveOrExpire fate = "approved or expired"
	anyOfThree      fate = "approved, cancelled or expired"
)

// ends are the statuses that an approval may end in.
var ends = map[fate][]string{
	isApproved: {"approved"}, isEdited: {"edited"}, isRejected: {"rejected"}, isResponded: {"responded"}, isExpired: {"expired"}, isCancelled: {"cancelled"}, inBulk: {"approved"},
	approveOrCancel: {"approved", "cancelled"}, approveOrExpire: {"approved", "expired"}, anyOfThree: {"approved", "cancelled", "expired"},
}

// The tools that are gated: one takes an idempotency_key, the other does not.
const (
	keyedTool = "orders.refund"
	plainTool = "orders.cancel"
)

// gatedCall is a call of a story, and what people do about it.
type gatedCall struct {
	tool string
	fate fate
}

// story is one turn of an agent.
type story struct {
	name   string
	agent  string // see newScene
	lookup bool   // an ungated call goes with the gated ones
	calls  []gatedCall
}

var stories = []story{
	{"approved, with a key", "one", false, []gatedCall{{keyedTool, isApproved}}},
	{"approved, not repeatable", "one", false, []gatedCall{{plainTool, isApproved}}},
	{"approved by two", "two", false, []gatedCall{{keyedTool, isApproved}}},
	{"edited, with a key", "one", false, []gatedCall{{keyedTool, isEdited}}},
	{"rejected", "one", false, []gatedCall{{keyedTool, isRejected}}},
	{"expired", "brief", false, []gatedCall{{plainTool, isExpired}}},
	{"responded", "one", false, []gatedCall{{plainTool, isResponded}}},
	{"cancelled while it waits", "one", false, []gatedCall{{keyedTool, isCancelled}}},
	{"looked up first", "one", true, []gatedCall{{keyedTool, isApproved}}},
	{"in parallel", "one", false, []gatedCall{{keyedTool, isApproved}, {plainTool, isApproved}, {keyedTool, isRejected}}},
	{"approved by two, not repeatable", "two", true, []gatedCall{{plainTool, isApproved}}},
	{"expired, and the run with it", "strict", false, []gatedCall{{plainTool, isExpired}}},
	{"edited by one of two, not repeatable", "two", false, []gatedCall{{plainTool, isEdited}}},
	{"approved while it is cancelled", "one", false, []gatedCall{{plainTool, approveOrCancel}}},
	{"one approved, then the run cancelled", "one", false, []gatedCall{{plainTool, isApproved}, {keyedTool, isCancelled}}},
	{"in bulk", "one", false, []gatedCall{{plainTool, inBulk}, {keyedTool, inBulk}, {plainTool, inBulk}}},
	{"edited and responded in one turn", "one", true, []gatedCall{{plainTool, isEdited}, {keyedTool, isResponded}}},
}

// scene is a tenant with agents that call a tool server's tools, and with two
// principals who decide.
type scene struct {
	*node
	log    *callLog
	first  *caller
	second *caller
	agents map[string]string // by the name that stories use
	told   atomic.Int64      // stories so far
	aims   map[fate]*aim     // of races
}

// briefly is the time that the approvals of brief and strict have, in minutes.
const briefly = 0.01

// newScene prepares it on a running node. The agents: one and two need as many
// approvals, those of brief expire soon, and those of strict take their run along.
func newScene(t *testing.T, n *node) *scene {
	t.Helper()
	w := &scene{node: n, first: n.tenant("gated"), agents: map[string]string{}, aims: map[fate]*aim{approveOrCancel: {}, approveOrExpire: {}, anyOfThree: {}}}
	var url string
	url, w.log = newTools(t)
	ctx := within(t, time.Minute)
	w.second = w.first.human(t, ctx)
	var orders struct{ ID string }
	w.first.ask(t, ctx, 201, "POST", "/v1/mcp-servers", object{"slug": "desk", "name": "Desk", "transport": "http", "endpoint": url, "auth_kind": "none"}, &orders)
	w.first.ask(t, ctx, 201, "POST", "/v1/tool-grants", object{"source": "mcp", "mcp_server_id": orders.ID, "tool_pattern": "orders.*", "effect": "allow"}, nil)
	policy := func(fields object) {
		for _, tool := range []string{keyedTool, plainTool} {
			p := object{"name": tool, "tool_pattern": "desk." + tool, "risk": "high"}
			maps.Copy(p, fields)
			w.first.ask(t, ctx, 201, "POST", "/v1/approval-policies", p, nil)
		}
	}
	policy(nil)
	for _, name := range []string{"one", "two", "brief", "strict"} {
		manifest := object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": "desk", "allow": []string{"orders.*"}}}}}
		if name == "strict" {
			manifest["hitl"] = object{"rules": []object{{"tool": "orders.*", "sla_minutes": briefly, "on_timeout": "cancel_run"}}}
		}
		w.agents[name] = w.first.publish(t, name, manifest)
		switch name {
		case "two":
			policy(object{"agent_id": w.agents[name], "required_approvals": 2})
		case "brief":
			policy(object{"agent_id": w.agents[name], "sla_minutes": briefly})
		}
	}
	return w
}

// newSceneNode is a node on a database that stays while the node is killed.
func newSceneNode(t *testing.T, env ...string) *node {
	t.Helper()
	return newNode(t, append([]string{"SVC_DATABASE_URL=" + pgtest.New(t).URL, "SVC_CLUSTER_LEASE=300ms", "SVC_OUTBOUND_ALLOW=127.0.0.0/8"}, env...)...)
}

// tale is a story as it was told once.
type tale struct {
	story
	id       string
	threaded bool // a message of a thread, else a run of its own
	run      string
	frames   []client.Frame // heard while it happened, over reconnects
	asked    []*asking
	waited   time.Time // when the tale heard that the run waits
	ended    string    // what the cancel answered, empty: it was not cancelled
	endedAt  time.Time // when
	wrong    []string  // answers that must not be
	err      error     // why it was not told to its end
	halves   int       // bulk decisions that storage was not there for as a whole
	// crowd, where it is set, decides in the place of the fates.
	crowd func(ctx context.Context) error
}

// asking is one gated call and what was done about it.
type asking struct {
	gatedCall
	order    string
	approval string
	expires  time.Time
	args     string    // what may be called, without the idempotency_key
	sent     time.Time // when the last needed approval was first sent; zero: never
	counted  *bool     // in a race: whether the approval was answered with success
	seen     string    // a terminal status that a reader saw
}

func (w *scene) newTale(s story) *tale {
	n := w.told.Add(1)
	x := &tale{story: s, id: fmt.Sprintf("t%d", n), threaded: n/int64(len(stories))%2 == 0}
	for i, c := range s.calls {
		a := &asking{gatedCall: c, order: fmt.Sprintf("%s-%d", x.id, i)}
		a.args = fmt.Sprintf(`{"order":%q,"amount":%d}`, a.order, 5+n%1000)
		x.asked = append(x.asked, a)
	}
	return x
}

// edited are other arguments for the same order.
func (a *asking) edited() string { return strings.Replace(a.args, `"amount":`, `"amount":-`, 1) }

// lookedUp is the order of the ungated call.
func (x *tale) lookedUp() string { return x.id + "-get" }

// says is what the run answers in the end.
func (x *tale) says() string {
	for _, a := range x.asked {
		if a.fate == isResponded {
			return "as told " + x.id
		}
	}
	return "done " + x.id
}

func (x *tale) script() string {
	var b strings.Builder
	if x.lookup {
		fmt.Fprintf(&b, "/call orders.get {\"order\":%q}\n", x.lookedUp())
	}
	for _, a := range x.asked {
		fmt.Fprintf(&b, "/call %s %s\n", a.tool, a.args)
	}
	b.WriteString("/say done " + x.id)
	return b.String()
}

func (x *tale) must(ok bool, format string, args ...any) {
	if !ok {
		x.wrong = append(x.wrong, fmt.Sprintf(format, args...))
	}
}

// careful sends a request until it is answered for good, over crashes and
// restarts: under an Idempotency-Key, where it changes something.
func (c *caller) careful(ctx context.Context, method, path, key string, body any) (answer, error) {
	var header []string
	if key != "" {
		header = []string{"Idempotency-Key", key}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := c.do(ctx, method, path, body, header...)
		if err == nil && a.status != http.StatusServiceUnavailable && a.status != http.StatusTooManyRequests && a.code() != "IDEMPOTENCY_IN_PROGRESS" {
			return a, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return a, fmt.Errorf("%s %s: %w (last: %s %v)", method, path, ctx.Err(), a, err)
		}
	}
}

// post is careful with a request that must succeed.
func (w *scene) post(ctx context.Context, who *caller, path, key string, body, out any) error {
	a, err := who.careful(ctx, "POST", path, key, body)
	if err != nil {
		return err
	}
	if a.status >= 300 {
		return fmt.Errorf("POST %s: %s", path, a)
	}
	return json.Unmarshal(a.body, out)
}

// tell plays a story to its end.
func (w *scene) tell(ctx context.Context, x *tale) {
	x.err = w.play(ctx, x)
}

func (w *scene) play(ctx context.Context, x *tale) error {
	path, body := "/v1/agents/"+w.agents[x.agent]+"/runs", object{"input": x.script()}
	if x.threaded {
		var thread struct{ ID string }
		if err := w.post(ctx, w.first, "/v1/threads", x.id+"thread", object{"agent_id": w.agents[x.agent]}, &thread); err != nil {
			return err
		}
		path, body = "/v1/threads/"+thread.ID+"/messages", object{"content": x.script()}
	}
	var started struct {
		RunID string `json:"run_id"`
	}
	err := w.post(ctx, w.first, path, x.id, body, &started)
	if err != nil {
		return err
	}
	x.run = started.RunID
	x.frames, err = w.hear(ctx, x.run, func(f client.Frame) error { return w.act(ctx, x, f) })
	return err
}

// hear follows a run to its end, over crashes.
func (w *scene) hear(ctx context.Context, run string, each func(client.Frame) error) ([]client.Frame, error) {
	var frames []client.Frame
	last := ""
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ended, err := w.first.FollowOnce(ctx, run, "?replay=full", &last, func(f client.Frame) error {
			frames = append(frames, f)
			if each == nil {
				return nil
			}
			return each(f)
		})
		var refused *client.APIError
		var broken client.BrokenStream
		switch {
		case ended:
			return frames, nil
		case ctx.Err() != nil:
			return frames, fmt.Errorf("stream of run %s: %w after %s", run, ctx.Err(), types(frames))
		case errors.As(err, &refused) && refused.Status != http.StatusServiceUnavailable, err != nil && !errors.As(err, &broken) && refused == nil:
			return frames, fmt.Errorf("stream of run %s: %w", run, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// act is what people do when the run asks them.
func (w *scene) act(ctx context.Context, x *tale, f client.Frame) error {
	switch f.Type {
	case "approval.required":
		var d struct {
			ID      string `json:"approval_id"`
			Tool    string
			Expires time.Time `json:"expires_at"`
		}
		if err := json.Unmarshal(f.Data, &d); err != nil {
			return err
		}
		for _, a := range x.asked {
			if a.approval == "" {
				a.approval, a.expires = d.ID, d.Expires
				x.must(d.Tool == "desk."+a.tool, "an approval for %s is required where %s was called", d.Tool, a.tool)
				return nil
			}
		}
		x.must(false, "one approval too many is required: %s", f.Data)
	case "run.waiting":
		x.waited = time.Now()
		if x.crowd != nil {
			return x.crowd(ctx)
		}
		errs := make([]error, len(x.asked)+1)
		var wg sync.WaitGroup
		for i, a := range x.asked {
			wg.Go(func() { errs[i] = w.decide(ctx, x, a) })
		}
		errs[len(x.asked)] = w.bulk(ctx, x)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return w.cancelled(ctx, x)
	}
	return nil
}

// verb sends one decision, under a key of its own for each nth, and says what was
// answered, as status or code.
func (w *scene) verb(ctx context.Context, a *asking, who *caller, action, args, feedback, nth string) (string, error) {
	body := object{"action": action}
	if args != "" {
		body["edited_args"] = json.RawMessage(args)
	}
	if feedback != "" {
		body["feedback"] = feedback
	}
	key := a.order + action + nth
	if who == w.second {
		key += "-second"
	}
	got, err := who.careful(ctx, "POST", "/v1/approvals/"+a.approval+"/decision", key, body)
	if err != nil {
		return "", err
	}
	if got.status != 200 {
		return got.code(), nil
	}
	var d client.Decided
	if err := json.Unmarshal(got.body, &d); err != nil {
		return "", err
	}
	return d.String(), nil
}

// decide carries out a call's fate, and checks what each decision is answered.
func (w *scene) decide(ctx context.Context, x *tale, a *asking) error {
	var err error
	expect := func(want string, who *caller, action, args, feedback string) bool {
		var got string
		if got, err = w.verb(ctx, a, who, action, args, feedback, ""); err != nil {
			return false
		}
		x.must(got == want, "%s of %s was answered %s, want %s", action, a.order, got, want)
		return got == want
	}
	switch a.fate {
	case isApproved, isEdited:
		action, status, args := "approve", "approved", ""
		if a.fate == isEdited {
			action, status, args = "edit", "edited", a.edited()
		}
		if x.agent != "two" {
			a.sent = time.Now()
			expect(status, w.first, action, args, "")
			break
		}
		if expect("pending, 1 so far", w.first, action, args, "") && expect("ALREADY_DECIDED", w.first, "reject", "", "") {
			a.sent = time.Now()
			expect(status, w.second, "approve", "", "")
		}
	case isRejected:
		if expect("rejected", w.first, "reject", "", "not today") {
			expect("ALREADY_DECIDED", w.second, "approve", "", "")
		}
	case isResponded:
		if expect("responded", w.first, "respond", "", "/say as told "+x.id) {
			expect("ALREADY_DECIDED", w.second, "approve", "", "")
		}
	case approveOrCancel, approveOrExpire, anyOfThree:
		err = w.race(ctx, x, a)
	}
	if err != nil || a.fate == isExpired || a.fate == isCancelled || a.fate == inBulk {
		return err
	}
	if err := w.look(ctx, a); err != nil {
		return err
	}
	if m := w.aims[a.fate]; m != nil {
		m.learn(a.seen, len(ends[a.fate]))
	}
	return nil
}

// look notes the status of an approval that is decided.
func (w *scene) look(ctx context.Context, a *asking) error {
	got, err := w.first.careful(ctx, "GET", "/v1/approvals/"+a.approval, "", nil)
	if err != nil {
		return err
	}
	var v gatedView
	if err := json.Unmarshal(got.body, &v); err != nil || got.status != 200 {
		return fmt.Errorf("read approval: %s", got)
	}
	a.seen = v.Status
	return nil
}

func (w *scene) cancelRun(ctx context.Context, x *tale) error {
	var d struct{ Status string }
	if err := w.post(ctx, w.first, "/v1/runs/"+x.run+"/cancel", x.id+"cancel", nil, &d); err != nil {
		return err
	}
	x.ended, x.endedAt = d.Status, time.Now()
	return nil
}

// bulk decides in one request the calls with this fate. A repeat is answered as the first
// time. Each entry has an answer of its own: the request is
// repeated until storage was there for all of them.
func (w *scene) bulk(ctx context.Context, x *tale) error {
	ids := []string{}
	for _, a := range x.asked {
		if a.fate == inBulk {
			ids = append(ids, a.approval)
			a.sent = time.Now()
		}
	}
	if len(ids) == 0 {
		return nil
	}
	type result struct {
		ID       string
		OK       bool
		Terminal string
		Error    struct{ Code string }
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var d struct{ Results []result }
		if err := w.post(ctx, w.first, "/v1/approvals/bulk-decision", x.id+"bulk", object{"ids": ids, "action": "approve"}, &d); err != nil {
			return err
		}
		if slices.ContainsFunc(d.Results, func(r result) bool { return r.Error.Code == "UNAVAILABLE" }) {
			x.halves++
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				return fmt.Errorf("the bulk decision was answered %+v: %w", d.Results, ctx.Err())
			}
		}
		ok := len(d.Results) == len(ids)
		for i, r := range d.Results {
			ok = ok && r.ID == ids[i] && r.OK && r.Terminal == "approved"
		}
		x.must(ok, "the bulk decision was answered %+v", d.Results)
		return nil
	}
}

// cancelled cancels the run of a call with this fate; a decision after that is too late.
func (w *scene) cancelled(ctx context.Context, x *tale) error {
	for _, a := range x.asked {
		if a.fate != isCancelled {
			continue
		}
		if err := w.cancelRun(ctx, x); err != nil {
			return err
		}
		got, err := w.verb(ctx, a, w.second, "approve", "", "", "")
		if err != nil {
			return err
		}
		x.must(got == "ALREADY_DECIDED", "approve of %s after the cancel was answered %s", a.order, got)
		return w.look(ctx, a)
	}
	return nil
}

// tellEach tells every story once, all at the same time.
func (w *scene) tellEach(ctx context.Context) []*tale {
	tales := make([]*tale, len(stories))
	var wg sync.WaitGroup
	for i, s := range stories {
		tales[i] = w.newTale(s)
		wg.Go(func() { w.tell(ctx, tales[i]) })
	}
	wg.Wait()
	return tales
}

// Every story, without a crash: nothing but its plain end will do.
func TestStoriesOfGatedCalls(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm)
	n.start()
	w := newScene(t, n)
	r := w.judge(t, w.tellEach(within(t, 30*time.Second)))
	w.examine(r)
	r.report(t)
	r.notVoid(t)
	for _, s := range stories {
		if r.stories[s.name] != 1 {
			t.Errorf("%s: ended %d times", s.name, r.stories[s.name])
		}
	}
	if r.unknown > 0 || r.again > 0 {
		t.Errorf("without a crash %d outcomes are unknown and %d calls were repeated", r.unknown, r.again)
	}
}
