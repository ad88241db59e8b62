package blackbox

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// yard is a tool server with mutating tools that no policy gates: yard.mark takes an
// idempotency_key, yard.stamp does not. It knows which process has called.
type yard struct {
	url string
	mu  sync.Mutex // guards calls
	all []yardCall
}

type yardCall struct {
	at          time.Time
	pid         int
	tool, order string
	key, args   string
}

const (
	markTool  = "yard.mark"
	stampTool = "yard.stamp"
	yardTools = `{"tools":[{"name":"yard.mark","description":"Mark.","annotations":{"readOnlyHint":false},"inputSchema":{"type":"object","required":["order"],"properties":{` +
		`"order":{"type":"string"},"idempotency_key":{"type":"string"}},"additionalProperties":false}},` +
		`{"name":"yard.stamp","description":"Stamp.","annotations":{"readOnlyHint":false},"inputSchema":{"type":"object","required":["order"],"properties":{` +
		`"order":{"type":"string"}},"additionalProperties":false}}]}`
)

// calling is the key of a connection's context that holds the process that dialled.
type calling struct{}

// newYard starts a yard. Without a bed it does not know which process calls.
func newYard(t *testing.T, b *bed) *yard {
	y := &yard{}
	s := httptest.NewUnstartedServer(y)
	if b != nil {
		s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, calling{}, b.caller(c))
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	y.url = s.URL
	if b != nil {
		b.shows(s.Listener.Addr().String())
	}
	return y
}

func (y *yard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m rpc
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller was killed while it sent
	}
	_ = json.Unmarshal(body, &m)
	switch {
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case m.Method == "initialize":
		rpcResult(w, m, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"yard","version":"1"}}`)
	case m.Method == "tools/list":
		rpcResult(w, m, yardTools)
	case m.Method == "tools/call":
		var args struct {
			Order string
			Key   string `json:"idempotency_key"`
		}
		_ = json.Unmarshal(m.Params.Arguments, &args)
		pid, _ := r.Context().Value(calling{}).(int)
		y.mu.Lock()
		y.all = append(y.all, yardCall{time.Now(), pid, m.Params.Name, args.Order, args.Key, string(m.Params.Arguments)})
		y.mu.Unlock()
		work := time.NewTimer(toolTime)
		defer work.Stop()
		select {
		case <-work.C:
		case <-r.Context().Done():
		}
		rpcText(w, m, `{"done":true}`)
	case len(m.ID) > 0:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (y *yard) calls() []yardCall {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.all)
}

// since counts the calls of a process from a time on.
func (y *yard) since(pid int, from time.Time) int {
	n := 0
	for _, c := range y.calls() {
		if c.pid == pid && c.at.After(from) {
			n++
		}
	}
	return n
}

// load is what a tenant does with a bed while it is shaken.
type load struct {
	*bed
	*scene
	book    *book   // what this tenant has met
	c       *caller // any node
	yard    *yard
	helper  string                 // an agent that only talks
	clerk   string                 // one with the yard's tools
	public  string                 // an embed key of the helper
	hearers map[string]*subscriber // webhook endpoints by what they do, nil: none
	flows   *flows
	stop    chan struct{}
	quiet   bool         // what goes wrong is no failure of the test
	crowd   crowd        // of the last run
	n       atomic.Int64 // things so far
	told    atomic.Int64 // tales so far
	drains  atomic.Int64 // buckets so far

	mu     sync.Mutex // guards the fields below
	chores []*chore
	talks  []*conversation
	tales  []*tale
	visits []*visit
	ran    []*flowTale     // runs of workflows
	maybe  map[string]bool // inputs of posts without a key that were not answered
	met    map[string]bool // what has happened at least once
	errs   []error
	kept   []error // those of a quiet load that is over
}

// newLoad prepares a tenant on a running bed.
func newLoad(t *testing.T, b *bed, book *book) *load {
	t.Helper()
	l := &load{bed: b, scene: newScene(t, b.desk), book: book, maybe: map[string]bool{}, met: map[string]bool{}}
	l.c = b.client(l.scene.first, book)
	second := *l.scene.second
	second.HTTP = &http.Client{Transport: asSession{l.c.HTTP.Transport, second.HTTP.Transport.(asSession).cookie}}
	l.scene.first, l.scene.second = l.c, &second
	l.yard = newYard(t, b)
	ctx := within(t, time.Minute)
	var desks struct{ Items []struct{ Endpoint string } }
	l.c.ask(t, ctx, 200, "GET", "/v1/mcp-servers", nil, &desks)
	for _, d := range desks.Items {
		u, err := url.Parse(d.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		b.shows(u.Host)
	}
	server := l.c.server(t, ctx, "yard", l.yard.url, "none")
	l.c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": server, "tool_pattern": "yard.*", "effect": "allow"})
	l.helper = l.c.publish(t, "Talks", simulatedModel)
	l.public = l.c.newEmbedKey(t, ctx, l.helper, "visitors", object{"rate_limit_per_min": 10000}).Key
	l.clerk = l.c.publish(t, "Yard", object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": "yard", "allow": []string{"yard.*"}}}}})
	l.flows = l.scene.newFlows(t, ctx, l.yard, book, l.helper)
	return l
}

// chore is a run of its own with ungated calls.
type chore struct {
	id        string
	run       string
	calls     bool // the yard's tools
	keyed     bool // posted under an Idempotency-Key
	frames    []client.Frame
	heard     bool   // its stream was followed
	polled    string // the first terminal status that a poll saw
	cancelled string // what the cancel answered, empty: it was not cancelled
}

// conversation is a thread with several posts.
type conversation struct {
	id, thread string
	posts      []*posting
}

type posting struct {
	content, run string
	frames       []client.Frame
}

func (l *load) fail(err error) {
	l.scene.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// meets notes what has happened.
func (l *load) meets(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.met[event] = true
}

func (l *load) hasMet(event string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.met[event]
}

// name is another one each time.
func (l *load) name(kind string) string { return fmt.Sprintf("%s-%d", kind, l.n.Add(1)) }

// repeat does one thing after another until the load stops, from n clients.
func (l *load) repeat(ctx context.Context, wg *sync.WaitGroup, n int, pause time.Duration, do func(context.Context) error) {
	for range n {
		wg.Go(func() {
			tick := time.NewTicker(max(pause, time.Millisecond))
			defer tick.Stop()
			for {
				select {
				case <-l.stop:
					return
				case <-ctx.Done():
					return
				default:
				}
				if err := do(ctx); err != nil {
					l.fail(err)
					return
				}
				if pause > 0 {
					select {
					case <-tick.C:
					case <-l.stop:
					}
				}
			}
		})
	}
}

// endsWithin is how long what was begun may take to end once the bed is
// not shaken any more.
const endsWithin = 30 * time.Second

// size of a load: clients of each kind.
type crowd struct{ talkers, clerks, tellers, flows, revokers, stalled, visitors, fillers, drainers int }

// run has the crowd at work while shake shakes the bed, and until what was begun
// has ended.
func (l *load) run(t *testing.T, limit time.Duration, n crowd, shake func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	l.stop, l.crowd = make(chan struct{}), n
	var wg sync.WaitGroup
	l.repeat(ctx, &wg, n.talkers, 0, l.converse)
	l.repeat(ctx, &wg, n.clerks, 0, l.chore)
	l.repeat(ctx, &wg, n.tellers, 0, l.tale)
	l.repeat(ctx, &wg, n.flows, 0, l.flow)
	l.repeat(ctx, &wg, n.revokers, 0, l.revocation)
	l.repeat(ctx, &wg, n.stalled, 3*time.Second, l.stalledReader)
	l.repeat(ctx, &wg, n.visitors, 0, l.visit)
	l.repeat(ctx, &wg, n.fillers, 0, l.fill)
	l.repeat(ctx, &wg, n.drainers, 0, l.drain)
	if l.hearers != nil {
		l.repeat(ctx, &wg, 1, rotated, l.rotate)
	}
	for _, m := range l.nodes {
		l.repeat(ctx, &wg, 1, 100*time.Millisecond, func(ctx context.Context) error { return l.probe(ctx, m) })
	}
	shake(ctx)
	l.book.event("the load stops")
	close(l.stop)
	late := time.AfterFunc(endsWithin, func() { // what has not ended by then says where it is
		for _, line := range l.book.longAsked(5 * time.Second) {
			l.book.event("not answered: %s", line)
		}
		cancel()
	})
	defer late.Stop()
	wg.Wait()
	for i, err := range l.errs {
		if l.quiet {
			break
		}
		if i == 5 {
			t.Errorf("and %d more", len(l.errs)-i)
			break
		}
		t.Error(err)
	}
	l.errs, l.kept = nil, l.errs
}

// hear follows a run to its end. If it cannot, its error has what a read shows of the run, and
// which member served the stream.
func (l *load) hear(ctx context.Context, run string) ([]client.Frame, error) {
	frames, err := l.scene.hear(ctx, run, nil)
	if err == nil {
		return frames, nil
	}
	r, served, last := new(runAnswer), "nobody", ""
	if m := l.serving(run); m != nil {
		served = m.name
	}
	if len(frames) > 0 {
		last = frames[len(frames)-1].ID
	}
	if a, err := l.c.do(context.WithoutCancel(ctx), "GET", "/v1/runs/"+run, nil); err == nil {
		_ = a.decode(r)
	}
	return frames, fmt.Errorf("%w, last id %q, served by node %s; the run is %s", err, last, served, r.Run.Status)
}

// serving is the node that has served the last stream of a run.
func (l *load) serving(run string) *member {
	s := l.c.HTTP.Transport.(*spread)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served["/v1/runs/"+run+"/events"]
}

// allStories are those of gated calls, races and crowds among them.
var allStories = slices.Concat([]story{{name: "crowd"}}, stories, races)

// tale is one story of them.
func (l *load) tale(ctx context.Context) error {
	n := int(l.told.Add(1)) - 1
	var x *tale
	if s := allStories[n%len(allStories)]; s.name == "crowd" {
		x = l.crowded()
	} else {
		x = l.scene.newTale(s)
	}
	l.mu.Lock()
	l.tales = append(l.tales, x)
	l.mu.Unlock()
	l.scene.tell(context.WithValue(ctx, telling{}, x.title()), x)
	if x.err == nil {
		l.meets("told: " + x.name)
	}
	return nil // the law of ends looks at it
}

// flow is one story of a workflow.
func (l *load) flow(ctx context.Context) error {
	x := l.flows.nextFlow()
	l.mu.Lock()
	l.ran = append(l.ran, x)
	l.mu.Unlock()
	l.flows.tellFlow(context.WithValue(ctx, telling{}, x.title()), x)
	if x.err == nil {
		l.meets("told: " + x.name)
	}
	return nil // the law of ends looks at it
}

// title is what requests of the tale are noted under.
func (x *tale) title() string { return x.id + ", " + x.name }

// crowded is a story whose one call is decided by fifty requests at a time.
func (l *load) crowded() *tale {
	x := l.scene.newTale(story{"crowd", "one", false, []gatedCall{{plainTool, isApproved}}})
	a := x.asked[0]
	x.crowd = func(ctx context.Context) error {
		got, errs := make([]string, 50), make([]error, 50)
		var wg sync.WaitGroup
		a.sent = time.Now()
		for i := range got {
			wg.Go(func() {
				who := []*caller{l.scene.first, l.scene.second}[i%2]
				got[i], errs[i] = l.scene.verb(ctx, a, who, "approve", "", "", fmt.Sprint(i))
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		counted := 0
		for _, g := range got {
			if g != "ALREADY_DECIDED" {
				counted++
			}
		}
		l.book.rule(lawCrowd, counted == 1, "%d of fifty decisions on %s count: %v", counted, a.approval, got)
		return l.scene.look(ctx, a)
	}
	return x
}

// chore posts a run of its own, follows or polls it to its end, and looks at the
// end on every node.
func (l *load) chore(ctx context.Context) error {
	x := &chore{id: l.name("chore")}
	ctx = context.WithValue(ctx, telling{}, x.id)
	n := l.n.Load()
	x.calls, x.keyed = n%3 != 0, n%4 != 0
	agent, input := l.helper, fmt.Sprintf("/delay 10ms\n/tokens %d\n/say done %s", 5+rand.IntN(60), x.id)
	if x.calls {
		agent, input = l.clerk, fmt.Sprintf("/call %s {\"order\":\"%s-m\"}\n/call %s {\"order\":\"%s-s\"}\n%s", markTool, x.id, stampTool, x.id, input)
	}
	path, body := "/v1/agents/"+agent+"/runs", object{"input": input}
	if x.keyed {
		both, errs := make([]struct {
			RunID string `json:"run_id"`
		}, 2), make([]error, 2)
		var wg sync.WaitGroup
		for i := range both {
			wg.Go(func() { errs[i] = l.scene.post(ctx, l.c, path, x.id, body, &both[i]) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		x.run = both[0].RunID
		l.book.rule(lawKeyed, both[0] == both[1], "%s was answered %v", x.id, both)
	} else {
		l.mu.Lock()
		l.maybe[input] = true
		l.mu.Unlock()
		a, err := l.c.do(ctx, "POST", path, body)
		switch {
		case err != nil || a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests:
			return nil // it may have been accepted
		case a.status != http.StatusAccepted:
			return fmt.Errorf("POST %s: %s", path, a)
		}
		var started struct {
			RunID string `json:"run_id"`
		}
		if err := a.decode(&started); err != nil {
			return err
		}
		x.run = started.RunID
	}
	l.mu.Lock()
	l.chores = append(l.chores, x)
	l.mu.Unlock()
	if n%5 == 1 {
		var d struct{ Status string }
		a, err := l.c.careful(ctx, "POST", "/v1/runs/"+x.run+"/cancel", x.id+"cancel", nil)
		if err != nil {
			return err
		}
		switch {
		case a.status < 300:
			if err := a.decode(&d); err != nil {
				return err
			}
			x.cancelled = d.Status
			l.meets("a cancel was answered " + d.Status)
		case a.code() != "RUN_TERMINAL":
			return fmt.Errorf("cancel of run %s: %s", x.run, a)
		}
	}
	if x.heard = n%2 == 0; !x.heard {
		return l.pollEnd(ctx, x)
	}
	var err error
	if x.frames, err = l.hear(ctx, x.run); err != nil {
		return err
	}
	if last := x.frames[len(x.frames)-1]; last.Type == "run.completed" {
		for _, m := range l.healthy() {
			var r runAnswer
			a, err := l.c.do(m.on(ctx), "GET", "/v1/runs/"+x.run, nil)
			if err != nil || a.status != http.StatusOK {
				continue // the node is going down or has no lease
			}
			if err := a.decode(&r); err != nil {
				return err
			}
			l.book.rule(lawReadEnd, r.Run.Status == "succeeded", "run %s is %s on node %s after run.completed", x.run, r.Run.Status, m.name)
		}
	}
	return nil
}

// pollEnd polls a run on random nodes until it has ended.
func (l *load) pollEnd(ctx context.Context, x *chore) error {
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		var r runAnswer
		a, err := l.c.careful(ctx, "GET", "/v1/runs/"+x.run, "", nil)
		if err != nil {
			return err
		}
		if a.status != http.StatusOK {
			l.book.breaks(lawAccepted, "run %s was accepted and is answered %s", x.run, a)
			return nil
		}
		if err := a.decode(&r); err != nil {
			return err
		}
		if terminalStatus[r.Run.Status] {
			x.polled = r.Run.Status
			l.meets("a run was " + x.polled)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("run %s is %s: %w", x.run, r.Run.Status, ctx.Err())
		}
	}
}

// converse posts some messages on a thread, one behind the other, and follows their
// runs.
func (l *load) converse(ctx context.Context) error {
	x := &conversation{id: l.name("talk")}
	ctx = context.WithValue(ctx, telling{}, x.id)
	var thread struct{ ID string }
	if err := l.scene.post(ctx, l.c, "/v1/threads", x.id, object{"agent_id": l.helper}, &thread); err != nil {
		return err
	}
	x.thread = thread.ID
	for i := range 3 {
		p := &posting{content: fmt.Sprintf("/delay 10ms\n/tokens %d\n/say %s %d", 10+rand.IntN(50), x.id, i)}
		var posted struct {
			RunID string `json:"run_id"`
		}
		if err := l.scene.post(ctx, l.c, "/v1/threads/"+x.thread+"/messages", fmt.Sprint(x.id, "-", i), object{"content": p.content}, &posted); err != nil {
			return err
		}
		p.run = posted.RunID
		x.posts = append(x.posts, p)
	}
	l.mu.Lock()
	l.talks = append(l.talks, x)
	l.mu.Unlock()
	errs := make([]error, len(x.posts))
	var wg sync.WaitGroup
	for i, p := range x.posts {
		wg.Go(func() { p.frames, errs[i] = l.hear(ctx, p.run) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// probe asks one node for something that needs a key and the database, whether it
// is healthy or not.
func (l *load) probe(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(m.on(ctx), 2*time.Second)
	defer cancel()
	_, _ = l.c.do(ctx, "GET", "/v1/runs?limit=1", nil)
	return nil
}

// revocation makes a key, has it used on every node and by a stream, revokes it
// at any node, and asks every node again once the 204 is there.
func (l *load) revocation(ctx context.Context) error {
	name := l.name("key")
	var key struct{ ID, Secret string }
	if err := l.scene.post(ctx, l.c, "/v1/api-keys", name, object{"name": name}, &key); err != nil {
		return err
	}
	user := *l.c
	user.Key = key.Secret
	var long struct {
		RunID string `json:"run_id"`
	}
	if err := l.scene.post(ctx, l.c, "/v1/agents/"+l.helper+"/runs", name+"run", object{"input": "/delay 200ms\n/tokens 25\n/say done " + name}, &long); err != nil {
		return err
	}
	x := &chore{id: name, run: long.RunID, keyed: true}
	l.mu.Lock()
	l.chores = append(l.chores, x)
	l.mu.Unlock()

	// A stream of the key, and a crowd of requests under it, over the revocation.
	using, cease := context.WithCancel(ctx)
	defer cease()
	streamed := make(chan time.Time, 1)
	opened := make(chan struct{})
	var open sync.Once
	var terminal atomic.Bool
	go func() {
		last := ""
		user.FollowOnce(using, x.run, "", &last, func(f client.Frame) error {
			open.Do(func() { close(opened) })
			terminal.Store(f.Terminal())
			return nil
		})
		open.Do(func() { close(opened) })
		streamed <- time.Now()
	}()
	<-opened
	used := map[*member]bool{}
	for _, m := range l.healthy() {
		if a, err := user.do(m.on(ctx), "GET", "/v1/runs?limit=1", nil); err == nil && a.status == http.StatusOK {
			used[m] = true
		}
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			tick := time.NewTicker(25 * time.Millisecond)
			defer tick.Stop()
			for using.Err() == nil {
				_, _ = user.do(using, "GET", "/v1/runs?limit=1", nil) // the book has it
				select {
				case <-tick.C:
				case <-using.Done():
				}
			}
		})
	}
	asked := time.Now()
	a, err := l.c.careful(ctx, "DELETE", "/v1/api-keys/"+key.ID, "", nil)
	gone := time.Now()
	if err != nil || a.status != http.StatusNoContent && a.status != http.StatusNotFound {
		cease()
		wg.Wait()
		return cmp.Or(err, fmt.Errorf("DELETE of a key: %s", a))
	}
	if a.status == http.StatusNoContent { // else the answer of an earlier try was lost
		for m := range used {
			for range 3 {
				a, err := user.do(m.on(ctx), "GET", "/v1/runs?limit=1", nil)
				if err == nil && a.status == http.StatusUnauthorized {
					l.book.rule(lawRevoked, true, "")
				}
			}
		}
		select {
		case at := <-streamed:
			switch late := at.Sub(gone); {
			case terminal.Load() || !at.After(asked): // it broke off, or its run ended, before
			case late <= time.Second:
				l.book.rule(lawCutOff, true, "")
			case l.serving(x.run).healthy.Load(): // else it cannot even close a stream
				l.book.breaks(lawCutOff, "it went on for %s", late)
			}
		case <-time.After(1500 * time.Millisecond):
			if m := l.serving(x.run); m.healthy.Load() {
				l.book.breaks(lawCutOff, "key %s: the stream of run %s goes on at node %s 1.5 s after its revocation", name, x.run, m.name)
			}
		}
		cease()
		wg.Wait()
		for _, a := range l.book.requests() {
			if a.key == "Bearer "+key.Secret && a.at.After(gone) {
				l.book.rule(lawRevoked, !a.accepted() && !(a.live && a.status == http.StatusOK), "%s %s was answered %d by node %s, asked %s after the 204", a.method, a.path, a.status, a.node.name, a.at.Sub(gone))
			}
		}
	}
	cease()
	wg.Wait()
	return l.pollEnd(ctx, x)
}

// stalledReader opens the stream of a run that says much and never reads, while
// another reader follows the same run: that one loses nothing.
func (l *load) stalledReader(ctx context.Context) error {
	x := &chore{id: l.name("stalled"), keyed: true, heard: true}
	var long struct {
		RunID string `json:"run_id"`
	}
	if err := l.scene.post(ctx, l.c, "/v1/agents/"+l.helper+"/runs", x.id, object{"input": "/delay 1ms\n/tokens 1500\n/say done " + x.id}, &long); err != nil {
		return err
	}
	x.run = long.RunID
	l.mu.Lock()
	l.chores = append(l.chores, x)
	l.mu.Unlock()
	stalled := 0
	for _, m := range l.healthy() {
		c, err := net.DialTimeout("tcp", m.addr, time.Second)
		if err != nil {
			continue
		}
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(1 << 10)
		if _, err := fmt.Fprintf(c, "GET /v1/runs/%s/events HTTP/1.1\r\nHost: bed\r\nAuthorization: Bearer %s\r\nX-Tenant-Id: %s\r\n\r\n", x.run, l.c.Key, l.c.Tenant); err == nil {
			head := make([]byte, 12)
			c.SetReadDeadline(time.Now().Add(2 * time.Second))
			if _, err := io.ReadFull(bufio.NewReaderSize(c, 16), head); err == nil && string(head) == "HTTP/1.1 200" {
				stalled++
			}
		}
	}
	var err error
	if x.frames, err = l.hear(ctx, x.run); err != nil {
		return err
	}
	if stalled > 0 {
		l.book.rule(lawStalled, strings.HasSuffix(lastText(x.frames), "done "+x.id), "run %s beside %d stalled readers: %s", x.run, stalled, types(x.frames))
	}
	return nil
}

// request is one of the requests that tenants make all day. The book has what was
// answered.
func (l *load) request(ctx context.Context, i int) {
	id := l.name("request")
	switch i % 4 {
	case 0:
		_, _ = l.c.do(ctx, "GET", "/v1/runs?limit=5", nil)
	case 1:
		_, _ = l.c.do(ctx, "POST", "/v1/agents/"+l.helper+"/runs", object{"input": "/say " + id}, "Idempotency-Key", id)
	case 2:
		var thread struct{ ID string }
		if a, err := l.c.do(ctx, "POST", "/v1/threads", object{"agent_id": l.helper}, "Idempotency-Key", id); err == nil && a.decode(&thread) == nil && thread.ID != "" {
			for n := range 3 {
				_, _ = l.c.do(ctx, "POST", "/v1/threads/"+thread.ID+"/messages", object{"content": "/say " + id}, "Idempotency-Key", fmt.Sprint(id, n))
			}
		}
	case 3:
		var started struct {
			RunID string `json:"run_id"`
		}
		if a, err := l.c.do(ctx, "POST", "/v1/agents/"+l.helper+"/runs", object{"input": "/delay 20ms\n/tokens 100"}, "Idempotency-Key", id); err == nil && a.decode(&started) == nil && started.RunID != "" {
			_, _ = l.c.do(ctx, "POST", "/v1/runs/"+started.RunID+"/cancel", nil, "Idempotency-Key", id+"c")
		}
	}
}
