package blackbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cmd/svc/client"
	"agentsvc/cmd/svc/dev"
	"agentsvc/schemas/id"
)

// What operators do to nodes, and what befalls them. The leases are long, so that
// what is seen here cannot be due to the lapse of one.

// longLease is for tests in which no lease ends: a node may miss its beats for 20 s.
const longLease = 30 * time.Second

// handsOverWithin is far less, and far more than a busy machine takes.
const handsOverWithin = longLease / 2

// operated is a tenant with an agent on some nodes.
type operated struct {
	*bed
	c     *caller // any node
	w     *scene  // reads streams over whatever happens
	agent string
}

func newOperated(t *testing.T, lease time.Duration, env ...string) *operated {
	t.Helper()
	b := newBed(t, 3, lease, env...)
	b.start()
	c := b.client(b.desk.tenant("operated"), b.book)
	return &operated{bed: b, c: c, w: &scene{node: b.desk, first: c}, agent: c.publish(t, "Talks", simulatedModel)}
}

// begins starts a run through a node. It has the shard of that node: new runs stay
// where they are posted.
func (o *operated) begins(ctx context.Context, m *member, input, key string) (string, error) {
	return o.posted(o.c.do(m.on(ctx), "POST", "/v1/agents/"+o.agent+"/runs", object{"input": input}, "Idempotency-Key", key))
}

// posted is the run that a post was answered.
func (*operated) posted(a answer, err error) (string, error) {
	var started struct {
		RunID string `json:"run_id"`
	}
	switch {
	case err != nil:
		return "", err
	case a.status != http.StatusAccepted:
		return "", fmt.Errorf("a post is answered %s", a)
	}
	err = json.Unmarshal(a.body, &started)
	return started.RunID, err
}

// nodeInfo is the part of a row of svc cluster status --json that tests read.
type nodeInfo struct {
	ID        id.MemberID `json:"id"`
	Address   string      `json:"address"`
	State     string      `json:"state"`
	Shards    int         `json:"shards"`
	LeaseLeft float64     `json:"lease_left_seconds"`
}

// States of a node.
const (
	stateServing  = "serving"
	stateDraining = "draining"
	stateDead     = "dead"
)

// listed is what svc cluster status says of the nodes' last processes.
func (o *operated) listed() map[*member]nodeInfo {
	o.t.Helper()
	out, code := o.desk.svc("cluster", "status", "--json")
	var seen struct{ Items []nodeInfo }
	if err := json.Unmarshal([]byte(out), &seen); err != nil || code != 0 {
		o.t.Fatalf("cluster status: code %d, %v: %s", code, err, out)
	}
	nodes := map[*member]nodeInfo{}
	for _, n := range seen.Items { // the later ones have started later
		for _, m := range o.nodes {
			if n.Address == m.peers.addr {
				nodes[m] = n
			}
		}
	}
	return nodes
}

// others are all nodes but one.
func (o *operated) others(than *member) []*member {
	var out []*member
	for _, m := range o.nodes {
		if m != than {
			out = append(out, m)
		}
	}
	return out
}

// sum is one metric, over some nodes.
func sum(t *testing.T, name string, of ...*member) float64 {
	t.Helper()
	total := 0.0
	for _, m := range of {
		v, ok := m.metric(name)
		if !ok {
			t.Fatalf("node %s has no %s", m.name, name)
		}
		total += v
	}
	return total
}

const (
	shardsGained = "svc_cluster_shards_gained_total"
	runActors    = `svc_cluster_actors{kind="run"}`
	durableRuns  = `svc_durable_activations{kind="run"}`
)

// settles waits until a node's gauge of running runs is n: an activation is counted
// before its post is answered, and its behaviour's own count with it.
func (o *operated) settles(ctx context.Context, m *member, n int) {
	o.t.Helper()
	eventually(o.t, ctx, fmt.Sprintf("node %s has %d runs in memory", m.name, n), func() bool {
		return sum(o.t, runActors, m) == float64(n) && sum(o.t, durableRuns, m) == float64(n)
	})
}

// living is how many actors a node has whose place is decided by who owns their
// shard, but those of some kinds; false: it does not answer any more. Streams live
// where they are read.
func (m *member) living(but ...string) (n float64, ok bool) {
	resp, err := http.Get(m.base + "/metrics")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	seen := false
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		labels, ok := strings.CutPrefix(s.Text(), "svc_cluster_actors")
		kind, value, found := strings.Cut(labels, " ")
		if !ok || !found || kind == `{kind="stream"}` || slices.ContainsFunc(but, func(b string) bool { return kind == `{kind="`+b+`"}` }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, false
		}
		n, seen = n+v, true
	}
	return n, seen && s.Err() == nil && resp.StatusCode == http.StatusOK
}

// TestADrainedNodeHandsOver drains a node that has runs: the others have its shards
// at once, no request is refused, it finishes the model turns that it has begun, and it
// has its shards back when the drain is undone.
func TestADrainedNodeHandsOver(t *testing.T) {
	o := newOperated(t, longLease)
	ctx := within(t, time.Minute)
	leaver := o.nodes[1]
	others := o.others(leaver)
	const many = 4
	runs := map[string]*member{}
	for i := range many * len(o.nodes) {
		m := o.nodes[i%len(o.nodes)]
		run, err := o.begins(ctx, m, fmt.Sprintf("/delay 30ms\n/tokens 200\n/say done %d", i), fmt.Sprint("long-", i))
		if err != nil {
			t.Fatal(err)
		}
		runs[run] = m
	}
	for _, m := range o.nodes {
		o.settles(ctx, m, many)
	}
	before := o.listed()
	for _, m := range o.nodes {
		if n := before[m]; n.State != stateServing || n.Shards == 0 || n.LeaseLeft <= 0 || n.LeaseLeft > longLease.Seconds() {
			t.Errorf("node %s is %+v", m.name, n)
		}
	}
	gained := sum(t, shardsGained, others...)

	var posting sync.WaitGroup
	over := make(chan struct{})
	stop := sync.OnceFunc(func() { close(over); posting.Wait() })
	defer stop()
	var posts atomic.Int64
	for i, m := range others {
		posting.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-tick.C:
				}
				if _, err := o.begins(ctx, m, "/say short", fmt.Sprintf("short-%d-%d", i, n)); err != nil {
					t.Errorf("while node %s drains, at node %s: %v", leaver.name, m.name, err)
				}
				posts.Add(1)
			}
		})
	}
	drained := time.Now()
	if out, code := o.desk.svc("cluster", "drain", leaver.peers.addr); code != 0 {
		t.Fatalf("drain: code %d: %s", code, out)
	}
	soon, cancel := context.WithDeadline(ctx, drained.Add(handsOverWithin))
	defer cancel()
	eventually(t, soon, "/readyz of the drained node is red", func() bool { code, _ := leaver.readiness(soon); return code == http.StatusServiceUnavailable })
	eventually(t, soon, "the drained node has no actors but its runs", func() bool { n, ok := leaver.living("run"); return ok && n == 0 })
	emptied := time.Now()
	eventually(t, soon, "the others have its shards", func() bool {
		return sum(t, shardsGained, others...) == gained+float64(before[leaver].Shards)
	})
	now, total := o.listed(), 0
	for _, m := range o.nodes {
		want := stateServing
		if m == leaver {
			want = stateDraining
		}
		if n := now[m]; n.State != want || (n.Shards == 0) != (m == leaver) || n.ID != before[m].ID || n.LeaseLeft <= 0 {
			t.Errorf("with node %s drained, node %s is %+v", leaver.name, m.name, n)
		}
		total += now[m].Shards
	}
	if total != id.Shards {
		t.Errorf("the nodes have %d shards", total)
	}
	here, err := o.begins(ctx, leaver, "/say posted here", "here") // what still reaches it is answered
	if err != nil {
		t.Errorf("at the drained node: %v", err)
	}
	runs[here] = nil

	var last time.Duration
	for run, m := range runs {
		r := o.c.poll(t, others[0].on(ctx), run, "succeeded")
		if r.Run.FinishedAt == nil {
			t.Fatalf("run %s has no end", run)
		}
		if took := r.Run.FinishedAt.Sub(drained); took > handsOverWithin {
			t.Errorf("run %s of node %v has ended %s after the drain", run, m, took)
		} else {
			last = max(last, took)
		}
		if m == leaver && r.Run.FinishedAt.Before(emptied) {
			t.Errorf("run %s had ended before the node was drained: the test is void", run)
		}
		if m != nil && r.shape() != "llm:succeeded" {
			t.Errorf("run %s of node %s has steps %s", run, m.name, r.shape())
		}
	}
	eventually(t, ctx, "the drained node has no actors", func() bool { n, ok := leaver.living(); return ok && n == 0 })
	stop()
	o.measures(t, ctx, others)

	gained = sum(t, shardsGained, leaver)
	if out, code := o.desk.svc("cluster", "drain", leaver.peers.addr, "--undo"); code != 0 {
		t.Fatalf("drain --undo: code %d: %s", code, out)
	}
	eventually(t, ctx, "the node is ready again", func() bool { code, _ := leaver.readiness(ctx); return code == http.StatusOK })
	eventually(t, ctx, "it has its shards again", func() bool { return sum(t, shardsGained, leaver) == gained+float64(before[leaver].Shards) })
	if n := o.listed()[leaver]; n.State != stateServing || n.Shards != before[leaver].Shards {
		t.Errorf("the node that was drained is %+v", n)
	}
	if run, err := o.begins(ctx, leaver, "/say back", "back"); err != nil {
		t.Error(err)
	} else {
		o.c.poll(t, leaver.on(ctx), run, "succeeded")
	}
	o.book.report(t)
	t.Logf("the node had nothing left but runs %s after the drain was asked for; all runs had ended after %s, %d posts to the others were accepted", emptied.Sub(drained).Round(time.Millisecond), last.Round(time.Millisecond), posts.Load())
}

// measures looks at what nodes say of themselves that have taken work over and were
// posted to.
func (o *operated) measures(t *testing.T, ctx context.Context, nodes []*member) {
	t.Helper()
	for _, name := range []string{shardsGained, "svc_journal_flush_size_count", "svc_limit_leases_total", "svc_sweep_takeover_seconds_count"} {
		for _, m := range nodes {
			if sum(t, name, m) == 0 {
				t.Errorf("%s of node %s is 0", name, m.name)
			}
		}
	}
	for _, kind := range []string{"run", "thread", "approval", "delivery", "trigger", "limit", "login", "holds", "stream"} {
		eventually(t, ctx, "no message waits for a "+kind, func() bool { return sum(t, `svc_cluster_mailbox_messages{kind="`+kind+`"}`, nodes...) == 0 })
		if n := sum(t, `svc_cluster_actors{kind="`+kind+`"}`, nodes...); n < 0 || kind == "limit" && n == 0 {
			t.Errorf("%v actors of the kind %s", n, kind)
		}
	}
	for _, m := range nodes { // runs that have ended are not kept or counted
		o.settles(ctx, m, 0)
	}
}

// TestWhoseProcessDiedIsFoundByItsRefusedPort kills a node. Its lease would hold the
// others back for two thirds of it at least; since its port refuses connections, they take
// over once it has also missed a beat.
func TestWhoseProcessDiedIsFoundByItsRefusedPort(t *testing.T) {
	const lease = 9 * time.Second
	const lapse = lease * 2 / 3 // a node that is killed just before a beat lapses no sooner
	o := newOperated(t, lease)
	ctx := within(t, time.Minute)
	victim := o.nodes[2]
	others := o.others(victim)
	// A node marks no other as dead within a lease of its own start.
	eventually(t, ctx, "all nodes may mark others dead", func() bool {
		var all bool
		err := o.admin.QueryRow(ctx, `SELECT bool_and(clock_timestamp() - started_at > $1) FROM members`, lease+time.Second/2).Scan(&all)
		return err == nil && all
	})
	runs := make([]*reading, 4)
	var readers sync.WaitGroup
	for i := range runs {
		run, err := o.begins(ctx, victim, fmt.Sprintf("/delay 30ms\n/tokens 150\n/say done %d", i), fmt.Sprint("long-", i))
		if err != nil {
			t.Fatal(err)
		}
		runs[i] = &reading{run: run}
		readers.Go(func() { runs[i].follow(others[i%len(others)].on(ctx), o.w) })
	}
	o.settles(ctx, victim, len(runs))
	before := o.listed()
	gained := sum(t, shardsGained, others...)
	// Half a lease after its last beat a node has missed one. It is killed when a part
	// of that is over, which leaves the others more time until the lapse.
	eventually(t, ctx, "its last beat is a while ago", func() bool {
		var left time.Duration
		err := o.admin.QueryRow(ctx, `SELECT lease_until - clock_timestamp() FROM members WHERE id = $1`, before[victim].ID).Scan(&left)
		return err == nil && left > lapse && left < lease*5/6
	})
	killed := time.Now()
	victim.kill()
	early, cancel := context.WithDeadline(ctx, killed.Add(lapse))
	defer cancel()
	eventually(t, early, "the others have its shards before its lease lapses", func() bool {
		return sum(t, shardsGained, others...) == gained+float64(before[victim].Shards)
	})
	took := time.Since(killed)
	for _, why := range []string{"lease_lapsed", "refuses_and_missed_a_beat"} {
		marked := 0.0
		for _, m := range others {
			n, _ := m.metric(`svc_membership_deaths_marked_total{why="` + why + `"}`) // absent: none
			marked += n
		}
		if (marked == 1) != (why != "lease_lapsed") {
			t.Errorf("%v nodes were marked dead: %s", marked, why)
		}
	}
	var spare time.Duration
	if err := o.admin.QueryRow(ctx, `SELECT lease_until - dead_at FROM members WHERE id = $1`, before[victim].ID).Scan(&spare); err != nil || spare <= 0 {
		t.Errorf("the node was marked dead %s before the end of its lease, %v", spare, err)
	}
	now := o.listed()
	for _, m := range o.nodes {
		want := stateServing
		if m == victim {
			want = stateDead
		}
		if n := now[m]; n.State != want || (n.Shards == 0) != (m == victim) || n.ID != before[m].ID {
			t.Errorf("with node %s killed, node %s is %+v", victim.name, m.name, n)
		}
	}
	readers.Wait()
	var slowest time.Duration
	for i, x := range runs {
		if x.err != nil {
			t.Error(x.err)
			continue
		}
		anew, ok := x.anew(killed)
		if !ok || anew > lapse {
			t.Errorf("run %s has begun anew %s after the kill, %t: %s", x.run, anew, ok, types(x.frames))
		}
		slowest = max(slowest, anew)
		x.is(t, ctx, o.w, fmt.Sprint("done ", i))
	}
	o.book.report(t)
	t.Logf("the others had its shards %s after the kill, %s before the lapse of its lease; its runs went on within %s", took.Round(time.Millisecond), spare.Round(time.Millisecond), slowest.Round(time.Millisecond))
}

// reading is a run whose stream was read to its end.
type reading struct {
	run    string
	frames []client.Frame
	at     []time.Time // when each frame came
	cuts   int         // how often the stream ended before the run
	err    error
}

// follow reads the run's stream over the ends of nodes.
func (x *reading) follow(ctx context.Context, w *scene) {
	x.frames, x.err = w.hear(ctx, x.run, func(client.Frame) error {
		x.at = append(x.at, time.Now())
		return nil
	})
}

// anew is how long after a moment the run began a step anew.
func (x *reading) anew(after time.Time) (time.Duration, bool) {
	for i, f := range x.frames {
		if f.Type == "step.started" && x.at[i].After(after) {
			return x.at[i].Sub(after), true
		}
	}
	return 0, false
}

// is holds what was heard against what is replayed: each frame came once.
func (x *reading) is(t *testing.T, ctx context.Context, w *scene, says string) {
	t.Helper()
	e := &end{run: w.first.poll(t, ctx, x.run, "succeeded")}
	var err error
	if e.replay, err = w.hear(ctx, x.run, nil); err != nil {
		t.Error(err)
		return
	}
	r := newRulings()
	new(findings).stream(r, x.run, x.run, x.frames, true, says, e)
	r.report(t)
}

// TestARollingRestartFailsNoRequest restarts one node after another, as an upgrade
// does, behind the project's own balancer, under load: what a client sends once is
// answered, whichever node has ended meanwhile.
func TestARollingRestartFailsNoRequest(t *testing.T) {
	o := newOperated(t, longLease, "SVC_DRAIN_TIMEOUT=1s") // shorter than the streams: some are cut
	ctx := within(t, 2*time.Minute)
	addrs := make([]string, len(o.nodes))
	for i, m := range o.nodes {
		addrs[i] = m.addr
	}
	balancer := dev.NewBalancer(addrs, zerolog.Nop())
	watching, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { balancer.Watch(watching) })
	defer watch.Wait()
	defer cancel()
	front := httptest.NewServer(balancer)
	defer front.Close()
	ready := func(m *member) {
		t.Helper()
		m.back(ctx)
		eventually(t, ctx, "the balancer sees node "+m.name, func() bool { return balancer.Ready(m.i) })
	}
	for _, m := range o.nodes {
		ready(m)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	c := &caller{client.Client{Base: front.URL, Key: o.c.Key, Tenant: o.c.Tenant, HTTP: &http.Client{Transport: transport}}}
	l := &onceEach{operated: o, c: c, w: &scene{node: o.desk, first: c}, stop: make(chan struct{})}
	for range 3 {
		l.repeat(ctx, l.alone)
	}
	for range 8 { // a node that ends cuts those that last longer than it gives balancers to notice
		l.repeat(ctx, l.streamed)
	}
	l.repeat(ctx, l.talk)
	l.repeat(ctx, l.list)

	early := 0
	for _, m := range o.nodes {
		former := m.pid()
		if l.rid(ctx, m) {
			early++
		}
		ready(m)
		if m.pid() == former {
			t.Fatalf("node %s was not restarted", m.name)
		}
	}
	// On a machine that is very busy this is not seen of each node.
	if early == 0 {
		t.Error("each node stopped answering before the others had its work")
	}
	close(l.stop)
	l.wg.Wait()

	resumed := 0
	for i, err := range l.failed {
		if i == 10 {
			t.Errorf("and %d more", len(l.failed)-i)
			break
		}
		t.Error(err)
	}
	for says, x := range l.heard {
		resumed += x.cuts
		x.is(t, ctx, l.w, says)
	}
	for _, run := range l.runs {
		c.poll(t, ctx, run, "succeeded")
	}
	if resumed == 0 || len(l.runs) < 10 || len(l.heard) == 0 {
		t.Errorf("%d runs, %d streams of which %d ends were resumed: the test is void", len(l.runs), len(l.heard), resumed)
	}
	o.book.report(t)
	t.Logf("%d requests, %d runs and %d streams over the restart of %d nodes; %d times a stream was resumed", l.asked.Load(), len(l.runs), len(l.heard), len(o.nodes), resumed)
}

// onceEach is a load whose requests are sent once: what is not answered is a
// failure.
type onceEach struct {
	*operated
	c     *caller
	w     *scene
	stop  chan struct{}
	wg    sync.WaitGroup
	n     atomic.Int64 // names so far
	asked atomic.Int64

	mu     sync.Mutex // guards the fields below
	runs   []string   // accepted
	heard  map[string]*reading
	failed []error
}

// rid ends a node in order, and reports whether it was seen without runs, except those that it
// finishes, while it still answered: no request waits for runs on their way out.
func (l *onceEach) rid(ctx context.Context, m *member) bool {
	var empty atomic.Bool
	var looking sync.WaitGroup
	ended := make(chan struct{})
	looking.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for !empty.Load() {
			if n, ok := m.living("run"); ok && n == 0 {
				empty.Store(true)
			}
			select {
			case <-tick.C:
			case <-ended:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	// Clients and balancers dial ahead, and the node is not to wait for a request there.
	silent, err := net.Dial("tcp", m.addr)
	if err != nil {
		l.t.Fatal(err)
	}
	defer silent.Close()
	m.term()
	close(ended)
	looking.Wait()
	return empty.Load()
}

// repeat does one thing after another until the load stops.
func (l *onceEach) repeat(ctx context.Context, do func(ctx context.Context, name string) error) {
	l.wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-ctx.Done():
				return
			default:
			}
			if err := do(ctx, fmt.Sprint("once-", l.n.Add(1))); err != nil {
				l.mu.Lock()
				l.failed = append(l.failed, err)
				l.mu.Unlock()
			}
			<-tick.C
		}
	})
}

// ask sends one request, once, which must have this status.
func (l *onceEach) ask(ctx context.Context, status int, method, path string, body any, name string) (answer, error) {
	l.asked.Add(1)
	var header []string
	if name != "" {
		header = []string{"Idempotency-Key", name}
	}
	begun := time.Now()
	a, err := l.c.do(ctx, method, path, body, header...)
	if err == nil && a.status == status {
		return a, nil
	}
	return a, fmt.Errorf("at %.3f %s %s, sent once, after %s: %w %s", time.Since(l.book.begun).Seconds(), method, path, time.Since(begun), err, a)
}

// post is ask for what begins a run.
func (l *onceEach) post(ctx context.Context, path string, body any, name string) (string, error) {
	a, err := l.ask(ctx, http.StatusAccepted, "POST", path, body, name)
	if err != nil {
		return "", err
	}
	run, err := l.posted(a, nil)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, run)
	return run, nil
}

// ends polls a run until it has ended.
func (l *onceEach) ends(ctx context.Context, run string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := l.ask(ctx, http.StatusOK, "GET", "/v1/runs/"+run, nil, "")
		if err != nil {
			return err
		}
		var r runAnswer
		if err := json.Unmarshal(a.body, &r); err != nil {
			return err
		}
		if terminalStatus[r.Run.Status] {
			if r.Run.Status != "succeeded" {
				return fmt.Errorf("run %s is %s %+v", run, r.Run.Status, r.Run.Error)
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("run %s is %s: %w", run, r.Run.Status, ctx.Err())
		}
	}
}

// alone is a run of its own, polled.
func (l *onceEach) alone(ctx context.Context, name string) error {
	run, err := l.post(ctx, "/v1/agents/"+l.agent+"/runs", object{"input": "/delay 10ms\n/tokens 30\n/say " + name}, name)
	if err != nil {
		return err
	}
	return l.ends(ctx, run)
}

// talk is a thread with two messages, one behind the other.
func (l *onceEach) talk(ctx context.Context, name string) error {
	a, err := l.ask(ctx, http.StatusOK, "POST", "/v1/threads", object{"agent_id": l.agent}, name)
	if err != nil {
		return err
	}
	var thread struct{ ID string }
	if err := json.Unmarshal(a.body, &thread); err != nil {
		return err
	}
	var last string
	for i := range 2 {
		if last, err = l.post(ctx, "/v1/threads/"+thread.ID+"/messages", object{"content": "/delay 10ms\n/tokens 10\n/say " + name}, fmt.Sprint(name, "-", i)); err != nil {
			return err
		}
	}
	return l.ends(ctx, last)
}

// list reads the newest runs.
func (l *onceEach) list(ctx context.Context, _ string) error {
	_, err := l.ask(ctx, http.StatusOK, "GET", "/v1/runs?limit=5", nil, "")
	return err
}

// streamed is a run whose stream is read. A stream may end with its node, in order:
// at the end of a frame, and of the answer. It goes on elsewhere at once.
func (l *onceEach) streamed(ctx context.Context, name string) error {
	run, err := l.post(ctx, "/v1/agents/"+l.agent+"/runs", object{"input": "/delay 25ms\n/tokens 200\n/say " + name}, name)
	if err != nil {
		return err
	}
	x := &reading{run: run}
	last := ""
	for {
		l.asked.Add(1)
		ended, err := l.c.FollowOnce(ctx, run, "?replay=full", &last, func(f client.Frame) error {
			x.frames = append(x.frames, f)
			return nil
		})
		var broken client.BrokenStream
		switch {
		case ended:
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.heard == nil {
				l.heard = map[string]*reading{}
			}
			l.heard[name] = x
			return nil
		case errors.As(err, &broken) && broken.Heard && broken.Err == io.EOF: // one in the midst of an answer is another error
			x.cuts++
		default:
			return fmt.Errorf("at %.3f, the stream of run %s after %q: %w", time.Since(l.book.begun).Seconds(), run, last, err)
		}
	}
}
