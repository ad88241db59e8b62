package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/persistence/feed"
	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a database: every object exists. Approvals have the role that roles says.
type rows struct {
	mu    sync.Mutex // guards the fields below
	roles map[id.UUID]lifecycle.Role
	taken map[id.UUID]bool // approvals that were escalated
	// status is that of all approvals.
	status lifecycle.ApprovalStatus
	fail   error
	reads  int
	last   int // objects of the last read
}

func (r *rows) Changed(_ context.Context, all []feed.Named) (*feed.Shown, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	r.last = len(all)
	if r.fail != nil {
		return nil, r.fail
	}
	out := &feed.Shown{}
	for _, n := range all {
		switch n.Kind {
		case msg.ChangedRun:
			out.Runs = append(out.Runs, feed.ShownRun{Tenant: n.Tenant, RunChange: api.RunChange{ID: id.RunID{UUID: n.ID}, Status: lifecycle.RunRunning}})
		case msg.ChangedApproval:
			role, ok := r.roles[n.ID]
			if !ok {
				role = lifecycle.RoleMember
			}
			out.Approvals = append(out.Approvals, feed.ShownApproval{Tenant: n.Tenant, Escalated: r.taken[n.ID],
				ApprovalChange: api.ApprovalChange{ID: id.ApprovalID{UUID: n.ID}, AssigneeRole: role, Status: r.status}})
		default:
			out.Resources = append(out.Resources, feed.ShownResource{Tenant: n.Tenant, Change: api.Change{Kind: n.Kind, ID: n.ID}})
		}
	}
	return out, nil
}

// conn is a client that keeps what it gets.
type conn struct {
	start time.Time

	mu   sync.Mutex // guards the fields below
	got  []got
	dead bool
	cut  bool
}

type got struct {
	at     time.Duration
	typ    event.Type
	id     string
	topics string
}

func (g got) String() string { return fmt.Sprintf("%v %s %s%s", g.at, g.typ, g.id, g.topics) }

func (c *conn) Send(f *event.Frame) bool { return c.SendAll([]*event.Frame{f}) }

func (c *conn) SendAll(frames []*event.Frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return false
	}
	for _, f := range frames {
		var data struct {
			Type   event.Type
			ID     string
			Topics []string
		}
		if err := json.Unmarshal(f.Data(), &data); err != nil || data.Type != f.Type {
			panic(fmt.Sprint(err, string(f.Bytes())))
		}
		c.got = append(c.got, got{time.Since(c.start), f.Type, data.ID, strings.Join(data.Topics, ",")})
	}
	return true
}

func (c *conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
}

func (c *conn) wasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

// took returns what came since the last call.
func (c *conn) took() []got {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.got
	c.got = nil
	return out
}

// types returns how often each type came since the last call.
func (c *conn) types() map[event.Type]int {
	n := map[event.Type]int{}
	for _, g := range c.took() {
		n[g.typ]++
	}
	return n
}

// network connects boards. It runs in a bubble of synctest, where messages take a millisecond.
type network struct {
	mu     sync.Mutex // guards the fields below
	boards map[id.MemberID]*Board
	cut    map[id.MemberID]bool // nothing reaches it
	calls  int
}

func (n *network) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

type end struct {
	*network
	self id.MemberID
}

var errCut = errors.New("the member does not answer")

func (e end) Call(ctx context.Context, to id.MemberID, _ string, m any) (any, error) {
	e.mu.Lock()
	b, cut := e.boards[to], e.cut[to] || e.cut[e.self]
	e.calls++
	e.mu.Unlock()
	if cut || b == nil {
		<-ctx.Done()
		return nil, errCut
	}
	time.Sleep(time.Millisecond)
	return b.Serve(ctx, e.self, m)
}

type world struct {
	t      *testing.T
	net    *network
	rows   *rows
	boards []*Board
	tenant id.TenantID
}

// rest waits, and for what is under way then.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// bubble runs f in a cluster of n boards.
func bubble(t *testing.T, n int, f func(w *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: &network{boards: map[id.MemberID]*Board{}, cut: map[id.MemberID]bool{}}, rows: &rows{roles: map[id.UUID]lifecycle.Role{}}, tenant: id.TenantID{UUID: id.NewAnywhere()}}
		for range n {
			w.join()
		}
		w.know()
		f(w)
		for _, b := range w.boards {
			b.Stop()
		}
	})
}

func (w *world) join() *Board {
	self := id.MemberID{UUID: id.NewAnywhere()}
	b := New(w.rows, end{w.net, self}, zerolog.Nop())
	w.net.mu.Lock()
	w.net.boards[self] = b
	w.net.mu.Unlock()
	w.boards = append(w.boards, b)
	if err := b.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return b
}

// know tells all boards of the members.
func (w *world) know() {
	for self, b := range w.net.boards {
		var others []id.MemberID
		for m := range w.net.boards {
			if m != self {
				others = append(others, m)
			}
		}
		b.Follow(others)
	}
}

func decides(role lifecycle.Role) func(lifecycle.Role, *id.NodeID) bool {
	return func(assignee lifecycle.Role, _ *id.NodeID) bool { return role.Satisfies(assignee) }
}

// open opens a feed of the tenant at a board.
func (w *world) open(b *Board, role lifecycle.Role, t Topics) (*Reader, *conn) {
	r := b.Open(w.t.Context(), Viewer{Tenant: w.tenant, User: id.UserID{UUID: id.NewAnywhere()}, Role: role, Topics: t, Decides: decides(role)})
	c := &conn{start: time.Now()}
	r.Attach(c)
	return r, c
}

func run() msg.Change { return msg.Change{Kind: msg.ChangedRun, ID: id.NewAnywhere()} }

func (w *world) want(c *conn, want map[event.Type]int) {
	w.t.Helper()
	got := c.took()
	n := map[event.Type]int{}
	for _, g := range got {
		n[g.typ]++
	}
	if fmt.Sprint(n) != fmt.Sprint(want) {
		w.t.Errorf("%v, want %v: %v", n, want, got)
	}
}

// A change reaches the readers within a second of its commit, on any node.
func TestAChangeReachesEveryNode(t *testing.T) {
	bubble(t, 3, func(w *world) {
		var conns []*conn
		var readers []*Reader
		for _, b := range w.boards {
			r, c := w.open(b, lifecycle.RoleOwner, All)
			w.want(c, map[event.Type]int{event.FeedReady: 1})
			conns, readers = append(conns, c), append(readers, r)
		}
		for i, b := range w.boards {
			b.Note(w.tenant, run())
			b.Note(w.tenant, msg.Change{Kind: msg.ChangedApproval, ID: id.NewAnywhere()})
			b.Note(w.tenant, msg.Change{Kind: msg.ChangedDelivery, ID: id.NewAnywhere()})
			b.Note(w.tenant, msg.Change{Kind: "message", ID: id.NewAnywhere()})
			b.Note(id.TenantID{UUID: id.NewAnywhere()}, run())
			rest(time.Second)
			for j, c := range conns {
				if n := c.types(); n[event.RunChanged] != 1 || n[event.ApprovalChanged] != 1 || n[event.ResourceChanged] != 1 || len(n) != 3 {
					t.Errorf("node %d got %v of node %d", j, n, i)
				}
			}
		}
		for _, r := range readers {
			r.Gone()
			r.Gone()
		}
		rest(watchLife)
		synctest.Wait()
		for _, b := range w.boards {
			if b.Wanted(w.tenant) {
				t.Error("a tenant without readers is watched")
			}
		}
	})
}

// A tenant without a reader costs nothing: no read, no call.
func TestATenantWithoutReadersCostsNothing(t *testing.T) {
	bubble(t, 2, func(w *world) {
		other := w.tenant
		w.tenant = id.TenantID{UUID: id.NewAnywhere()}
		r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
		defer r.Gone()
		rest(time.Second)
		before := w.net.count()
		for _, b := range w.boards {
			b.Note(other, run())
		}
		rest(watchEvery / 2)
		if after := w.net.count(); w.rows.reads != 0 || after > before+1 { // one renewal
			t.Errorf("%d reads, %d calls", w.rows.reads, after-before)
		}
		w.want(c, map[event.Type]int{event.FeedReady: 1})
	})
}

// One per object and 250 ms.
func TestAnObjectIsNamedOncePer250ms(t *testing.T) {
	bubble(t, 2, func(w *world) {
		r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
		defer r.Gone()
		one := run()
		for range 100 { // two seconds
			w.boards[1].Note(w.tenant, one)
			w.boards[0].Note(w.tenant, one)
			rest(20 * time.Millisecond)
		}
		rest(time.Second)
		got := c.took()[1:]
		if len(got) < 7 || len(got) > 10 {
			t.Errorf("%d frames in two seconds", len(got))
		}
		for i, g := range got {
			if g.typ != event.RunChanged || g.id != one.ID.String() || i > 0 && g.at-got[i-1].at < spacing {
				t.Errorf("%v after %v", g, got[max(i-1, 0)])
			}
		}
		if last := got[len(got)-1]; last.at < 1980*time.Millisecond {
			t.Errorf("the last change is not named: %v", last)
		}
	})
}

// Beyond 50 changes in a second there is feed.lost with the topic, within a second of the last
// change, and the other topics go on.
func TestBeyondFiftyASecondIsLost(t *testing.T) {
	for _, c := range []struct {
		name  string
		rate  int // changes in 100 ms
		exact bool
	}{
		{"40 in a second", 4, true},
		{"50 in a second", 5, true},
		{"60 in a second", 6, false},
		{"500 in a second", 50, false},
		{"5000 in a second", 500, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 2, func(w *world) {
				r, conn := w.open(w.boards[0], lifecycle.RoleOwner, All)
				defer r.Gone()
				all := 0
				start := time.Now()
				for range 30 {
					for range c.rate {
						w.boards[1].Note(w.tenant, run())
						all++
					}
					rest(100 * time.Millisecond)
				}
				over := time.Since(start)
				w.boards[1].Note(w.tenant, msg.Change{Kind: msg.ChangedApproval, ID: id.NewAnywhere()})
				rest(time.Second)
				got := conn.took()[1:]
				named, lost, approvals := 0, 0, 0
				var times []time.Duration
				lastLost := time.Duration(-time.Hour)
				for _, g := range got {
					switch g.typ {
					case event.RunChanged:
						named++
						times = append(times, g.at)
					case event.ApprovalChanged:
						approvals++
					case event.FeedLost:
						lost++
						if g.topics != event.TopicRuns {
							t.Errorf("lost %s", g.topics)
						}
						if g.at-lastLost < lostEvery {
							t.Errorf("feed.lost at %v and %v", lastLost, g.at)
						}
						lastLost = g.at
					}
				}
				if approvals != 1 {
					t.Errorf("%d approvals", approvals)
				}
				for i, at := range times {
					if j := i + maxRate; j < len(times) && times[j]-at < time.Second {
						t.Fatalf("%d changes from %v to %v", maxRate+1, at, times[j])
					}
				}
				if c.exact {
					if named != all || lost != 0 {
						t.Errorf("%d of %d named, %d lost", named, all, lost)
					}
					return
				}
				if lost == 0 || named == all || lastLost < over-spacing {
					t.Errorf("%d of %d named, %d lost, at %v the last of %v", named, all, lost, lastLost, over)
				}
			})
		})
	}
}

// A member's feed carries neither approvals above its role nor admin resources.
func TestRoles(t *testing.T) {
	bubble(t, 1, func(w *world) {
		kinds := []string{"agent", "workflow", "kb", "kb.document", "kb.source", "browser_skill", "browser_skill_run", "end_user", "thread", "attachment", "tenant",
			"api_key", "approval_policy", "connection", "embed_key", "mcp_server", "model_provider", "org_node", "tool_grant", "trigger", "user", "webhook", "webhook.listener", "delivery", "not.known"}
		forAll := 11
		roles := []lifecycle.Role{lifecycle.RoleMember, lifecycle.RoleAdmin, lifecycle.RoleOwner}
		var conns []*conn
		for _, role := range roles {
			r, c := w.open(w.boards[0], role, All)
			defer r.Gone()
			conns = append(conns, c)
		}
		for i, kind := range kinds {
			w.boards[0].Note(w.tenant, msg.Change{Kind: kind, ID: id.NewAnywhere()})
			rest(time.Second)
			for j, c := range conns {
				want := i < forAll || j > 0
				if n := c.types(); (n[event.ResourceChanged] == 1) != want {
					t.Errorf("%s gets %v of a change of kind %s", roles[j], n, kind)
				}
			}
		}
		for want, role := range []lifecycle.Role{lifecycle.RoleMember, lifecycle.RoleManager, lifecycle.RoleAdmin, lifecycle.RoleOwner} {
			a := id.NewAnywhere()
			w.rows.roles[a] = role
			w.boards[0].Note(w.tenant, msg.Change{Kind: msg.ChangedApproval, ID: a})
			rest(time.Second)
			for j, c := range conns {
				sees := want <= []int{0, 2, 3}[j]
				if n := c.types(); (n[event.ApprovalChanged] == 1) != sees {
					t.Errorf("%s gets %v of an approval for %s", roles[j], n, role)
				}
			}
		}
	})
}

// An approval that escalates to another role is told to those who may not decide it any more, as
// feed.lost without naming it: their lists show it, and they have no other way to learn that.
func TestAnEscalationIsToldToThoseWhoLoseTheApproval(t *testing.T) {
	bubble(t, 1, func(w *world) {
		b := w.boards[0]
		admin, ac := w.open(b, lifecycle.RoleAdmin, All)
		owner, oc := w.open(b, lifecycle.RoleOwner, All)
		runs, rc := w.open(b, lifecycle.RoleAdmin, Runs)
		for _, r := range []*Reader{admin, owner, runs} {
			defer r.Gone()
		}
		rest(time.Second)
		for _, c := range []*conn{ac, oc, rc} {
			c.took()
		}
		a := id.NewAnywhere()
		w.rows.roles[a], w.rows.status = lifecycle.RoleOwner, lifecycle.ApprovalPending
		note := func() { b.Note(w.tenant, msg.Change{Kind: msg.ChangedApproval, ID: a}); rest(time.Second) }
		note() // it was opened for an owner: no admin has it
		w.want(ac, map[event.Type]int{})
		w.want(oc, map[event.Type]int{event.ApprovalChanged: 1})
		w.rows.taken = map[id.UUID]bool{a: true}
		note()
		got := ac.took()
		if len(got) != 1 || got[0].typ != event.FeedLost || got[0].topics != event.TopicApprovals || got[0].id != "" {
			t.Errorf("the admin gets %v", got)
		}
		w.want(oc, map[event.Type]int{event.ApprovalChanged: 1})
		w.rows.status = lifecycle.ApprovalApproved
		note() // it is gone from every list of what waits
		w.want(ac, map[event.Type]int{})
		w.want(oc, map[event.Type]int{event.ApprovalChanged: 1})
		w.want(rc, map[event.Type]int{})
	})
}

// Readers get the topics that they asked for.
func TestTopics(t *testing.T) {
	bubble(t, 1, func(w *world) {
		byTopic := map[Topics]event.Type{Runs: event.RunChanged, Approvals: event.ApprovalChanged, Resources: event.ResourceChanged}
		conns := map[Topics]*conn{}
		for set := Topics(1); set <= All; set++ {
			r, c := w.open(w.boards[0], lifecycle.RoleOwner, set)
			defer r.Gone()
			conns[set] = c
			c.took()
		}
		for _, kind := range []string{msg.ChangedRun, msg.ChangedApproval, "agent"} {
			w.boards[0].Note(w.tenant, msg.Change{Kind: kind, ID: id.NewAnywhere()})
		}
		rest(time.Second)
		if w.rows.reads != 1 {
			t.Errorf("%d reads for 7 readers", w.rows.reads)
		}
		for set, c := range conns {
			want := map[event.Type]int{}
			for topic, typ := range byTopic {
				if set&topic != 0 {
					want[typ] = 1
				}
			}
			w.want(c, want)
		}
		for range 200 {
			w.boards[0].Note(w.tenant, run())
		}
		rest(time.Second)
		for set, c := range conns {
			if n := c.types(); (n[event.FeedLost] > 0) != (set&Runs != 0) {
				t.Errorf("readers of %v get %v", set.names(), n)
			}
		}
	})
	for name, want := range map[string]Topics{"runs": Runs, "approvals": Approvals, "resources": Resources, "": 0, "Runs": 0} {
		if got, ok := Topic(name); got != want || ok != (want != 0) {
			t.Errorf("%q is %v %v", name, got, ok)
		}
	}
	if got := strings.Join(All.names(), ","); got != strings.Join(event.Topics, ",") {
		t.Error(got)
	}
}

// A node that does not answer: feed.lost every 5 s, and once it answers again; nothing that it
// committed in the meantime stays unknown.
func TestANodeThatDoesNotAnswer(t *testing.T) {
	bubble(t, 2, func(w *world) {
		r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
		defer r.Gone()
		w.want(c, map[event.Type]int{event.FeedReady: 1})
		var far id.MemberID
		for m, b := range w.net.boards {
			if b == w.boards[1] {
				far = m
			}
		}
		set := func(cut bool) { w.net.mu.Lock(); w.net.cut[far] = cut; w.net.mu.Unlock() }
		set(true)
		rest(watchEvery + callTimeout + spacing)
		w.want(c, map[event.Type]int{event.FeedLost: 1})
		w.boards[1].Note(w.tenant, run())
		rest(3 * pollEvery)
		if n := c.types()[event.FeedLost]; n < 2 || n > 4 {
			t.Errorf("%d times lost in 15 s", n)
		}
		// A reader that connects now is told at once that it may miss changes.
		late, lateConn := w.open(w.boards[0], lifecycle.RoleOwner, Runs)
		defer late.Gone()
		rest(time.Second)
		got := lateConn.took()
		if len(got) != 2 || got[0].typ != event.FeedReady || got[1].typ != event.FeedLost || got[1].topics != event.TopicRuns {
			t.Errorf("%v", got)
		}
		c.took()
		set(false)
		rest(2 * time.Second)
		if n := c.types()[event.FeedLost]; n == 0 {
			t.Error("the node answers again, and its changes stay unknown")
		}
		w.boards[1].Note(w.tenant, run())
		rest(time.Second)
		w.want(c, map[event.Type]int{event.RunChanged: 1})
		rest(2 * pollEvery)
		w.want(c, map[event.Type]int{})
	})
}

// Members that join or leave make readers read again.
func TestMembersComeAndGo(t *testing.T) {
	bubble(t, 2, func(w *world) {
		r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
		defer r.Gone()
		rest(time.Second)
		w.want(c, map[event.Type]int{event.FeedReady: 1})
		third := w.join()
		w.know()
		rest(time.Second)
		w.want(c, map[event.Type]int{event.FeedLost: 1})
		third.Note(w.tenant, run())
		rest(time.Second)
		w.want(c, map[event.Type]int{event.RunChanged: 1})
		w.net.mu.Lock()
		for m, b := range w.net.boards {
			if b == third {
				delete(w.net.boards, m)
			}
		}
		w.net.mu.Unlock()
		w.know()
		rest(time.Second)
		w.want(c, map[event.Type]int{event.FeedLost: 1})
		rest(2 * pollEvery)
		w.want(c, map[event.Type]int{})
	})
}

// A Watch that is overtaken by a later one of its sender changes nothing: the tenants of the later
// one stay watched. Watches without a number, of an older build, are taken as they come.
func TestAWatchThatIsOvertaken(t *testing.T) {
	bubble(t, 2, func(w *world) {
		b := w.boards[0]
		var from id.MemberID
		for m, o := range w.net.boards {
			if o == w.boards[1] {
				from = m
			}
		}
		first, second := w.tenant, id.TenantID{UUID: id.NewAnywhere()}
		for _, step := range []struct {
			number  uint64
			tenants []id.TenantID
			watched []id.TenantID
		}{
			{7, []id.TenantID{first}, []id.TenantID{first}},
			{9, []id.TenantID{first, second}, []id.TenantID{first, second}},
			{8, []id.TenantID{first}, []id.TenantID{first, second}},
			{9, nil, []id.TenantID{first, second}},
			{10, []id.TenantID{second}, []id.TenantID{second}},
			{0, []id.TenantID{first}, []id.TenantID{first}},
			{0, []id.TenantID{second}, []id.TenantID{second}},
		} {
			if _, err := b.Serve(t.Context(), from, Watch{Number: step.number, Tenants: step.tenants}); err != nil {
				t.Fatal(err)
			}
			for _, tenant := range []id.TenantID{first, second} {
				if got, want := b.Wanted(tenant), slices.Contains(step.watched, tenant); got != want {
					t.Errorf("after Watch %d of %d tenants one is watched %v", step.number, len(step.tenants), got)
				}
			}
		}
		// Each Watch of a board has a greater number than the one before.
		r, _ := w.open(w.boards[1], lifecycle.RoleOwner, All)
		defer r.Gone()
		sent := func() uint64 {
			w.boards[1].mu.Lock()
			defer w.boards[1].mu.Unlock()
			return w.boards[1].watches
		}
		before := sent()
		rest(2 * watchEvery)
		if now := sent(); before == 0 || now <= before {
			t.Errorf("%d Watches after %d", now, before)
		}
	})
}

// Rows that cannot be read are lost, not forgotten.
func TestRowsThatCannotBeRead(t *testing.T) {
	bubble(t, 1, func(w *world) {
		r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
		defer r.Gone()
		w.rows.fail = errors.New("no database")
		w.boards[0].Note(w.tenant, run())
		w.boards[0].Note(w.tenant, msg.Change{Kind: "agent", ID: id.NewAnywhere()})
		rest(time.Second)
		got := c.took()
		if len(got) != 2 || got[1].typ != event.FeedLost || got[1].topics != "runs,resources" {
			t.Errorf("%v", got)
		}
		w.rows.fail = nil
		w.boards[0].Note(w.tenant, run())
		rest(time.Second)
		w.want(c, map[event.Type]int{event.RunChanged: 1})
	})
}

// Slow and vanished clients delay no other.
func TestAClientThatVanishes(t *testing.T) {
	bubble(t, 1, func(w *world) {
		gone, dead := w.open(w.boards[0], lifecycle.RoleOwner, All)
		r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
		dead.mu.Lock()
		dead.dead = true
		dead.mu.Unlock()
		w.boards[0].Note(w.tenant, run())
		rest(time.Second)
		w.want(c, map[event.Type]int{event.FeedReady: 1, event.RunChanged: 1})
		gone.Gone()
		w.boards[0].Note(w.tenant, run())
		rest(time.Second)
		w.want(c, map[event.Type]int{event.RunChanged: 1})
		r.Gone()
		never := w.boards[0].Open(w.t.Context(), Viewer{Tenant: w.tenant, Topics: All, Decides: decides(lifecycle.RoleOwner)})
		never.Gone() // its stream did not begin
		if len(w.boards[0].desks) != 0 || w.boards[0].Wanted(w.tenant) {
			t.Error("a desk without readers stays")
		}
	})
}

// The feeds of members are cut when the managers of org nodes may have changed: on every node, also
// when more has changed than is named.
func TestRightsThatChange(t *testing.T) {
	bubble(t, 2, func(w *world) {
		member, mc := w.open(w.boards[0], lifecycle.RoleMember, All)
		admin, ac := w.open(w.boards[0], lifecycle.RoleAdmin, All)
		defer member.Gone()
		defer admin.Gone()
		rest(time.Second)
		if ac.wasCut() || mc.wasCut() {
			t.Errorf("the admin is cut %v, the member %v, and nothing has changed", ac.wasCut(), mc.wasCut())
		}
		for range 200 {
			w.boards[1].Note(w.tenant, msg.Change{Kind: "agent", ID: id.NewAnywhere()})
		}
		w.boards[1].Note(w.tenant, msg.Change{Kind: "org_node", ID: id.NewAnywhere()})
		rest(time.Second)
		if ac.wasCut() || !mc.wasCut() {
			t.Errorf("the admin is cut %v, the member %v", ac.wasCut(), mc.wasCut())
		}
	})
}

// A feed whose rights were read before managers changed does not begin; one whose rights were read
// afterwards does, though the change is told to the attached ones only then.
func TestRightsThatChangeWhileAFeedOpens(t *testing.T) {
	bubble(t, 1, func(w *world) {
		b := w.boards[0]
		begin := func(role lifecycle.Role) *Reader {
			return b.Open(w.t.Context(), Viewer{Tenant: w.tenant, User: id.UserID{UUID: id.NewAnywhere()}, Role: role, Topics: All, Decides: decides(role)})
		}
		before, admin := begin(lifecycle.RoleMember), begin(lifecycle.RoleAdmin)
		b.Note(w.tenant, msg.Change{Kind: "org_node", ID: id.NewAnywhere()})
		after := begin(lifecycle.RoleMember)
		for r, cut := range map[*Reader]bool{before: true, admin: false, after: false} {
			defer r.Gone()
			c := &conn{start: time.Now()}
			r.Attach(c)
			rest(time.Second)
			if ready := c.types()[event.FeedReady] == 1; c.wasCut() != cut || ready == cut {
				t.Errorf("the feed of role %s is cut %v and ready %v", r.Role, c.wasCut(), ready)
			}
		}
	})
}

// A node that does not answer, or is gone, may have changed managers: the feeds of members are
// cut when it answers again, and when it leaves.
func TestRightsThatMayHaveChangedElsewhere(t *testing.T) {
	bubble(t, 2, func(w *world) {
		var far id.MemberID
		for m, b := range w.net.boards {
			if b == w.boards[1] {
				far = m
			}
		}
		admin, ac := w.open(w.boards[0], lifecycle.RoleAdmin, All)
		defer admin.Gone()
		for _, c := range []struct {
			what    string
			silence time.Duration
			leaves  bool
		}{
			{"it answers again before its watch has ended", 4 * time.Second, false},
			{"it answers again when its watch has ended", 2 * watchLife, false},
			{"it has left", time.Second, true},
		} {
			member, mc := w.open(w.boards[0], lifecycle.RoleMember, All)
			defer member.Gone()
			rest(time.Second)
			w.net.mu.Lock()
			w.net.cut[far] = true
			w.net.mu.Unlock()
			w.boards[1].Note(w.tenant, msg.Change{Kind: "org_node", ID: id.NewAnywhere()})
			rest(c.silence)
			if mc.wasCut() {
				t.Errorf("%s: the member is cut while the node is silent", c.what)
			}
			w.net.mu.Lock()
			w.net.cut[far] = c.leaves // what it would tell is lost with it
			if c.leaves {
				delete(w.net.boards, far)
			}
			w.net.mu.Unlock()
			if c.leaves {
				w.know()
			}
			rest(5 * time.Second)
			if !mc.wasCut() || ac.wasCut() {
				t.Errorf("%s: the member is cut %v, the admin %v", c.what, mc.wasCut(), ac.wasCut())
			}
		}
	})
}

// The rights of a view are those of its latest reader, though an earlier one is still there.
func TestAViewHasTheLatestRights(t *testing.T) {
	bubble(t, 1, func(w *world) {
		user := id.UserID{UUID: id.NewAnywhere()}
		approval := id.NewAnywhere()
		w.rows.roles[approval] = lifecycle.RoleManager
		var latest *conn
		for _, role := range []lifecycle.Role{lifecycle.RoleMember, lifecycle.RoleManager} {
			r := w.boards[0].Open(w.t.Context(), Viewer{Tenant: w.tenant, User: user, Role: lifecycle.RoleMember, Topics: All, Decides: decides(role)})
			defer r.Gone()
			latest = &conn{start: time.Now()}
			r.Attach(latest)
		}
		w.boards[0].Note(w.tenant, msg.Change{Kind: msg.ChangedApproval, ID: approval})
		rest(time.Second)
		w.want(latest, map[event.Type]int{event.FeedReady: 1, event.ApprovalChanged: 1})
	})
}

// Names are bounded.
func TestNames(t *testing.T) {
	n := newNames()
	for range 10 * maxNames {
		n.add(run())
	}
	for range maxNames {
		n.add(msg.Change{Kind: "agent", ID: id.NewAnywhere()})
	}
	if n.lost != Runs || len(n.changed) != maxNames {
		t.Errorf("lost %v, %d names", n.lost.names(), len(n.changed))
	}
	o := newNames()
	o.add(msg.Change{Kind: "agent", ID: id.NewAnywhere()})
	o.add(msg.Change{Kind: msg.ChangedApproval, ID: id.NewAnywhere()})
	n.merge(o)
	if n.lost != Runs|Resources || len(n.changed) != 1 || n.empty() {
		t.Errorf("lost %v, %d names", n.lost.names(), len(n.changed))
	}
	if !slices.Equal(Topics(0).names(), []string{}) {
		t.Error("no topics")
	}
}

// The last reader of a node goes while its Watch is in flight, answered or not, and another one
// comes: it begins with a Watch of its own, at once.
func TestAReaderThatComesBackDuringAWatch(t *testing.T) {
	for name, cut := range map[string]bool{"the Watch is answered": false, "the Watch fails": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(w *world) {
				r, _ := w.open(w.boards[0], lifecycle.RoleOwner, All)
				silent := func(is bool) {
					w.net.mu.Lock()
					defer w.net.mu.Unlock()
					for m, b := range w.net.boards {
						w.net.cut[m] = is && b == w.boards[1]
					}
				}
				silent(cut)
				before := w.net.count()
				time.Sleep(watchEvery + time.Millisecond/2) // a call takes a millisecond
				if n := w.net.count() - before; n != 1 {
					t.Fatalf("%d calls", n)
				}
				r.Gone()
				rest(callTimeout)
				silent(false)
				began := time.Now()
				r, c := w.open(w.boards[0], lifecycle.RoleOwner, All)
				defer r.Gone()
				if took := time.Since(began); took > 10*time.Millisecond {
					t.Errorf("it waits for %v", took)
				}
				w.want(c, map[event.Type]int{event.FeedReady: 1})
			})
		})
	}
}
