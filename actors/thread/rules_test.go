package thread

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// embedded is a thread of the embed API.
func embedded() State {
	s := fresh()
	s.CreatedBy = "embed:vid:1"
	return s
}

// A message begins its thread: the rows are inserted with the commit.
func TestAThreadBegins(t *testing.T) {
	p := post(newRun())
	his := &msg.Visitor{Agent: agent, CreatedBy: "embed:vid:1"}
	for name, c := range map[string]struct {
		new bool
		who *msg.Visitor
	}{"a Post without New": {false, his}, "a Post of nobody": {true, nil}} {
		p.New, p.Visitor = c.new, c.who
		if _, ok := create(cluster.Address{}, p); ok {
			t.Error("begun by " + name)
		}
	}
	if _, ok := create(cluster.Address{}, msg.DeleteThread{}); ok {
		t.Error("begun by its deletion")
	}
	user := id.EndUserID{UUID: id.NewAnywhere()}
	p.New, p.Visitor, p.EndUserID = true, his, &user
	s, ok := create(cluster.Address{Tenant: tenant, ID: it.UUID}, p)
	if !ok || !s.Embed() || !s.Unborn || s.ID != it || s.Tenant != tenant || s.Agent != agent || s.CreatedBy != his.CreatedBy || *s.EndUserID != user {
		t.Fatalf("%+v", s)
	}
	d := decide(t, s, p)
	if d.Next.Unborn || d.Next.NextSeq != 3 || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		t.Fatalf("%+v", d)
	}
	guard := journal.Guard{Version: 7, Epoch: 8, SetEpoch: 9}
	w := rows(cluster.Address{}, durable.Loaded[State]{State: s, Guard: guard}, d, p, id.OpID{}, t0)
	if n := journaltest.Row[*engine.ThreadInsert](w); n == nil || journaltest.Row[*engine.ThreadUpdate](w) != nil || n.ID != it || n.AgentID != agent ||
		n.CreatedBy != his.CreatedBy || n.NextSeq != 3 || *n.EndUserID != user || journaltest.Row[*engine.RunInsert](w) == nil || len(journaltest.Rows[*engine.MessageInsert](w)) != 1 {
		t.Errorf("the first message writes %+v", w)
	}
	begun := d.Next
	// The next one is written with the swap of the row.
	next := post(newRun())
	d = answer(t, begun, next, Admitted{})
	w = rows(cluster.Address{}, durable.Loaded[State]{State: begun, Guard: guard}, d, next, id.OpID{}, t0)
	if u := journaltest.Row[*engine.ThreadUpdate](w); journaltest.Row[*engine.ThreadInsert](w) != nil || u == nil || u.Guard != guard || u.NextSeq != 5 ||
		journaltest.Row[*engine.RunInsert](w) == nil || len(journaltest.Rows[*engine.MessageInsert](w)) != 1 {
		t.Errorf("the next one writes %+v", w)
	}
	// It comes again: as the first time. Another one: nobody's, unless the rows have it.
	if d := decide(t, d.Next, p); d.Changed || d.Question != nil || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		t.Errorf("%+v", d)
	}
	other := post(newRun())
	other.New, other.Visitor = true, his
	d = decide(t, begun, other)
	if d.Changed || d.Question != any(Accepted{other.Run}) {
		t.Fatalf("%+v", d)
	}
	if _, err := remembers(1).Decide(begun, durable.Answered{Msg: other, Question: d.Question, Answer: false}, t0); !isNotFound(err) {
		t.Errorf("begun again: %v", err)
	}
	if d := decide(t, begun, durable.Answered{Msg: other, Question: d.Question, Answer: true}); d.Changed || d.Reply != any(msg.Posted{Run: other.Run, Message: other.Message}) {
		t.Errorf("it began the thread long ago: %+v", d)
	}
	// What is not there yet cannot be deleted, and only its beginning is accepted.
	if _, err := remembers(1).Decide(s, msg.DeleteThread{}, t0); !isNotFound(err) {
		t.Errorf("deleted before it began: %v", err)
	}
	if d := decide(t, s, next); d.Question != any(Accepted{next.Run}) || d.Changed {
		t.Errorf("a post before the first: %+v", d)
	}
}

func TestTheTitleOfAThread(t *testing.T) {
	long := strings.Repeat("ab ", 40)
	for content, want := range map[string]string{
		"Where is my order?":        "Where is my order?",
		"  one\n\ttwo\r\nthree\x07": "one two three",
		"\n \t":                     "",
		strings.Repeat("ä", 80):     strings.Repeat("ä", 80),
		strings.Repeat("ä", 81):     strings.Repeat("ä", 80) + "…",
		long:                        strings.TrimSpace(long[:80]) + "…",
	} {
		got := title(content)
		if (got == nil) != (want == "") || got != nil && *got != want {
			t.Errorf("%q: %v, want %q", content, got, want)
		}
	}
}

// answer is the decision on a post with the answer to the question on it.
func answer(t testing.TB, s State, p msg.Post, a Admitted) decision {
	t.Helper()
	d := decide(t, s, p)
	if _, asks := d.Question.(Admission); !asks || d.Changed || len(d.Facts) > 0 {
		t.Fatalf("no question: %+v", d)
	}
	return decide(t, s, durable.Answered{Msg: p, Question: d.Question, Answer: a})
}

// Two posts that were both admitted as the thread stood are not both accepted: the answer
// to the second is from before the first, and it is asked for again.
func TestTwoPostsToOneThread(t *testing.T) {
	s, a, b := embedded(), post(newRun()), post(newRun())
	first, second := decide(t, s, a), decide(t, s, b)
	if first.Question != any(Admission{Run: a.Run, Embed: true, NextSeq: 1}) || second.Question != any(Admission{Run: b.Run, Embed: true, NextSeq: 1}) {
		t.Fatalf("%+v, %+v", first, second)
	}
	if s = decide(t, s, durable.Answered{Msg: a, Question: first.Question, Answer: Admitted{}}).Next; s.NextSeq != 3 {
		t.Fatalf("%+v", s)
	}
	d := decide(t, s, durable.Answered{Msg: b, Question: second.Question, Answer: Admitted{}})
	if d.Changed || d.Question != any(Admission{Run: b.Run, Embed: true, NextSeq: 3}) {
		t.Fatalf("the second, with an answer from before the first: %+v", d)
	}
	// Neither does an old refusal count.
	flight := problem.New(problem.CodeEmbedRunInFlight, "")
	if old := decide(t, s, durable.Answered{Msg: b, Question: second.Question, Answer: Admitted{Refusal: flight}}); old.Question != d.Question || old.Changed {
		t.Errorf("refused as it stood before the first: %+v", old)
	}
	if _, err := remembers(1).Decide(s, durable.Answered{Msg: b, Question: d.Question, Answer: Admitted{Refusal: flight}}, t0); !errors.Is(err, flight) {
		t.Errorf("refused as it stands: %v", err)
	}
	if d := decide(t, s, durable.Answered{Msg: b, Question: d.Question, Answer: Admitted{}}); len(d.Facts) != 1 || d.Next.NextSeq != 5 {
		t.Errorf("admitted as it stands: %+v", d)
	}
	// In a thread of the platform nobody asks how it stands.
	s = fresh()
	for _, p := range []msg.Post{a, b} {
		d := decide(t, s, p)
		if d.Question != nil || len(d.Facts) != 1 || d.Next.NextSeq != s.NextSeq+2 {
			t.Errorf("%+v", d)
		}
		s = d.Next
	}
}

// service.md, Embed rules; open-parts.md, Embed: row by row, from the rows.
func TestHowAThreadStands(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	tenant, agent := id.TenantID{UUID: id.NewAnywhere()}, id.AgentID{UUID: id.NewAnywhere()}
	exec(`INSERT INTO tenants (id, name) VALUES ($1, 'T')`, tenant)
	exec(`INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'a', 'A')`, tenant, agent)
	const full, flight = problem.CodeEmbedThreadFull, problem.CodeEmbedRunInFlight
	silent := problem.New(problem.CodeAgentNotPublished, "")
	for _, row := range []struct {
		name   string
		before int // messages of runs that have ended
		runs   []lifecycle.RunStatus
		code   problem.Code
		names  int // the run of the refusal
	}{
		{"nothing was said", 0, nil, "", 0},
		{"nothing is open", 0, []lifecycle.RunStatus{"succeeded"}, "", 0},
		{"the previous run is queued", 0, []lifecycle.RunStatus{"succeeded", "queued"}, flight, 1},
		{"the previous run is running", 0, []lifecycle.RunStatus{"running"}, flight, 0},
		{"the previous run waits for an approval", 0, []lifecycle.RunStatus{"waiting_approval"}, "", 0},
		{"one is queued behind it", 0, []lifecycle.RunStatus{"waiting_approval", "queued"}, flight, 1},
		{"which was cancelled", 0, []lifecycle.RunStatus{"waiting_approval", "cancelled"}, "", 0},
		{"and the other one goes on", 0, []lifecycle.RunStatus{"running", "cancelled"}, flight, 0},
		{"the previous run failed", 0, []lifecycle.RunStatus{"failed"}, "", 0},
		{"198 messages", 196, []lifecycle.RunStatus{"succeeded"}, "", 0},
		{"199 messages", 198, []lifecycle.RunStatus{"failed"}, full, 0},
		{"200 messages", 198, []lifecycle.RunStatus{"succeeded"}, full, 0},
		{"197 messages and a reply that is owed", 196, []lifecycle.RunStatus{"waiting_approval"}, "", 0},
		{"198 messages and a reply that is owed", 197, []lifecycle.RunStatus{"waiting_approval"}, full, 0},
		{"full comes before in flight", 197, []lifecycle.RunStatus{"running"}, full, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			th := id.ThreadID{UUID: id.New(3)}
			exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by) VALUES ($1, $2, $3, 'embed:vid:1')`, tenant, th, agent)
			exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) SELECT $1, $2, n, gen_random_uuid(), 'user', 'x', now() FROM generate_series(1, $3) n`, tenant, th, row.before)
			var runs []id.RunID
			for i, status := range row.runs {
				r, seq := id.RunID{UUID: id.New(3)}, row.before+1+2*i
				exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, created_at, finished_at, error_code)
					VALUES ($1, $2, $3::text, $4, 1, $5, $6, 'embed_key', $1, now(), CASE WHEN $3::text IN ('succeeded', 'failed', 'cancelled') THEN now() END,
					CASE WHEN $3::text IN ('failed', 'cancelled') THEN 'INTERNAL' END)`, tenant, r, status, agent, th, seq)
				exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at)
					SELECT $1, $2, n, gen_random_uuid(), CASE n WHEN $3 THEN 'user' ELSE 'assistant' END, 'x', $5, now() FROM generate_series($3::int, $4::int) n`,
					tenant, th, seq, seq+map[bool]int{true: 1}[status == lifecycle.RunSucceeded], r)
				runs = append(runs, r)
			}
			versions := 0
			k := &kind{Config{Store: engine.New(pool), Version: func(_ context.Context, t id.TenantID, a id.AgentID) (int, error) {
				if versions++; t != tenant || a != agent {
					return 0, errors.New("the version of another agent")
				}
				return 0, silent
			}}}
			ask := func(q Admission) Admitted {
				t.Helper()
				a, err := k.read(t.Context(), cluster.Address{Kind: msg.KindThread, Tenant: tenant, ID: th.UUID}, q)
				if err != nil {
					t.Fatal(err)
				}
				return a.(Admitted)
			}
			for _, q := range []Admission{{Run: newRun(), Embed: true}, {Run: newRun(), Embed: true, Agent: agent}} {
				versions = 0
				a := ask(q)
				// The agent is judged last.
				if asked := !q.Agent.IsZero() && row.code == ""; a.Before || (versions == 1) != asked || (a.Silent != nil) != asked || asked && !errors.Is(a.Silent, silent) {
					t.Errorf("%+v: %+v, %d versions were read", q, a, versions)
				}
				if row.code == "" {
					if a.Refusal != nil {
						t.Error(a.Refusal)
					}
					continue
				}
				var p *problem.Error
				if !errors.As(a.Refusal, &p) || p.Code != row.code || p.Detail == "" {
					t.Fatalf("%v", a.Refusal)
				}
				if named, _ := p.Extensions["run_id"].(string); row.code == flight && named != runs[row.names].String() || row.code == full && p.Extensions != nil {
					t.Errorf("%+v", p.Extensions)
				}
			}
			// A run of the thread is a Post that comes again, however the thread stands.
			for _, r := range runs {
				if a := ask(Admission{Run: r, Embed: true, Agent: agent}); !a.Before || a.Silent != nil {
					t.Errorf("run %s: %+v", r, a)
				}
			}
			// In a thread of the platform the agent alone is judged.
			if a := ask(Admission{Run: newRun(), Agent: agent}); a.Refusal != nil || !errors.Is(a.Silent, silent) {
				t.Errorf("of the platform: %+v", a)
			}
		})
	}
}

// broken has no rows and no versions.
type broken struct{ Store }

func (broken) Standing(context.Context, id.TenantID, id.ThreadID, id.RunID) (s engine.Standing, err error) {
	return s, errors.New("broken")
}

// What cannot be read is no refusal: the host says that there is no storage.
func TestAnAdmissionThatCannotBeRead(t *testing.T) {
	k := &kind{Config{Store: broken{}, Version: func(context.Context, id.TenantID, id.AgentID) (int, error) { return 0, errors.New("broken") }}}
	for _, q := range []Admission{{Run: newRun(), Embed: true}, {Run: newRun(), Agent: agent}} {
		a, err := k.read(t.Context(), cluster.Address{Tenant: tenant, ID: it.UUID}, q)
		var seen *problem.Error
		if err == nil || errors.As(err, &seen) {
			t.Errorf("%+v: %+v, %v", q, a, err)
		}
	}
}

// ruled is the rows of an embed thread in a history, and its two activations.
type ruled struct {
	*rapid.T
	first    int64 // place
	version  int   // of the row
	messages int
	runs     []*ruledRun // in order
	of       [2]activation
	asking   []*asking

	accepted, refused, stale, moved, repeated *int
}

type ruledRun struct {
	post    msg.Post
	seq     int64
	open    bool
	waiting bool // for an approval
}

// activation is what a node knows of the thread, and the version of the row that it has.
type activation struct {
	State
	version int
	machine Machine
}

// asking is a post on which the machine had a question.
type asking struct {
	post     msg.Post
	at       int // which activation
	q        Admission
	answered bool
	a        Admitted
	runs     int  // of the thread, when the answer was read
	admitted bool // by the rules, as the thread stood then
}

func (w *ruled) owed() (n int, newest *ruledRun) {
	for _, r := range w.runs {
		if r.open {
			n, newest = n+1, r
		}
	}
	return n, newest
}

func (w *ruled) find(run id.RunID) *ruledRun {
	for _, r := range w.runs {
		if r.post.Run == run {
			return r
		}
	}
	return nil
}

// activate reads the row.
func (w *ruled) activate(at int) {
	s := embedded()
	s.NextSeq = w.first + 2*int64(len(w.runs))
	for _, r := range w.runs {
		if r.open && len(s.Queue.Open) == window {
			s.Queue.More = true
		} else if r.open {
			s.Queue.Open = append(s.Queue.Open, OpenRun{r.post.Run, r.seq})
		}
	}
	for _, r := range w.runs[max(0, len(w.runs)-window):] {
		s.Queue.Asked = append(s.Queue.Asked, r.post.Run)
	}
	w.of[at].State, w.of[at].version = s, w.version
}

// hear gives an activation a message, and does with the decision what the host does.
func (w *ruled) hear(at int, p msg.Post, m any, known *asking) {
	a := &w.of[at]
	before := a.State
	before.Queue.Open, before.Queue.Asked = slices.Clone(a.State.Queue.Open), slices.Clone(a.State.Queue.Asked)
	d, err := a.machine.Decide(a.State, m, t0)
	if !reflect.DeepEqual(before, a.State) {
		w.Fatalf("%T mutated the state", m)
	}
	there, reply := w.find(p.Run), any(msg.Posted{Run: p.Run, Message: p.Message})
	switch {
	case err != nil:
		if known == nil || known.a.Refusal == nil || !errors.Is(err, known.a.Refusal) || known.admitted || there != nil || known.q.NextSeq != a.NextSeq {
			w.Fatalf("refused by %v with %+v", err, known)
		}
		*w.refused++
	case d.Question != nil:
		q, ok := d.Question.(Admission)
		if !ok || d.Changed || q.Run != p.Run || !q.Embed || q.NextSeq != a.NextSeq || known != nil && known.q == q {
			w.Fatalf("asks %+v with %+v", d.Question, known)
		}
		if known != nil {
			*w.stale++
		}
		w.asking = append(w.asking, &asking{post: p, at: at, q: q})
	case !d.Changed:
		if there == nil || d.Reply != reply {
			w.Fatalf("replies %+v, and it was not accepted", d.Reply)
		}
		*w.repeated++
	case a.version != w.version: // the swap is refused, and the message asked again
		*w.moved++
		w.activate(at)
		w.hear(at, p, p, nil)
	case there != nil:
		w.Fatalf("accepted twice, with %+v", known)
	default:
		if known == nil || !known.admitted || known.runs != len(w.runs) {
			w.Fatalf("accepted with %+v, and %d runs are there", known, len(w.runs))
		}
		if d.Reply != reply || len(d.Facts) != 1 || d.Next.NextSeq != a.NextSeq+2 {
			w.Fatalf("accepted by %+v", d)
		}
		w.runs = append(w.runs, &ruledRun{post: p, seq: a.NextSeq, open: true})
		w.messages++
		w.version++
		a.State, a.version = d.Next, w.version
		*w.accepted++
	}
	if n, _ := w.owed(); w.messages+n > maxMessages {
		w.Fatalf("%d messages and %d replies that are owed", w.messages, n)
	}
}

// TestEmbedLaws drives random histories of posts to two activations of one embed thread,
// of which one may be old: questions that are answered late and by what stood then, ends
// of runs with and without a reply, approvals, repeats and crashes. A message is accepted
// if and only if the rules admit it as the thread stood after the message before it; who
// is refused writes nothing; each is accepted once, and one that comes again is answered
// as the first time.
func TestEmbedLaws(t *testing.T) {
	var accepted, refused, stale, moved, repeated, full int
	rapid.Check(t, func(t *rapid.T) {
		w := &ruled{T: t, first: 1001, messages: rapid.SampledFrom([]int{0, 100, 180, 190, 196, 199}).Draw(t, "messages"),
			accepted: &accepted, refused: &refused, stale: &stale, moved: &moved, repeated: &repeated}
		for at := range w.of {
			w.of[at].machine = remembers(rapid.IntRange(0, 1).Draw(t, "version"))
			w.activate(at)
		}
		which := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		for range rapid.SampledFrom([]int{10, 50, 300}).Draw(t, "length") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1:
				p := post(newRun())
				w.hear(which(2, "at"), p, p, nil)
			case 2, 3: // a question is read
				if len(w.asking) > 0 {
					k := w.asking[which(len(w.asking), "asking")]
					n, newest := w.owed()
					s := engine.Standing{Messages: w.messages, Owed: n, Before: w.find(k.post.Run) != nil}
					k.admitted = w.messages+n+2 <= 200 && (newest == nil || newest.waiting)
					if newest != nil {
						status := lifecycle.RunRunning
						if newest.waiting {
							status = lifecycle.RunWaitingApproval
						}
						s.Open, s.OpenStatus = &newest.post.Run, &status
					}
					k.answered, k.runs, k.a = true, len(w.runs), Admitted{Before: s.Before, Refusal: refusal(s)}
					if !k.q.Agent.IsZero() {
						k.a.Version = 1
					}
					if w.messages+n+2 > 200 {
						full++
					}
				}
			case 4, 5, 6: // the machine has the answer
				if len(w.asking) > 0 {
					i := which(len(w.asking), "answered")
					if k := w.asking[i]; k.answered {
						w.asking = slices.Delete(w.asking, i, i+1)
						w.hear(k.at, k.post, durable.Answered{Msg: k.post, Question: k.q, Answer: k.a}, k)
					}
				}
			case 7: // a run ends, waits or goes on
				if _, r := w.owed(); r != nil {
					switch rapid.IntRange(0, 3).Draw(t, "run") {
					case 0:
						r.waiting = !r.waiting
					case 1:
						r.open = false
					default:
						r.open = false
						w.messages++
					}
					if !r.open {
						for at := range w.of {
							d, err := w.of[at].machine.Decide(w.of[at].State, msg.RunEnded{Run: r.post.Run}, t0)
							if err != nil {
								t.Fatal(err)
							}
							w.of[at].State = d.Next
						}
					}
				}
			case 8: // a crash, or another member takes over: memory is lost, and who waits asks again
				at := which(2, "at")
				w.activate(at)
				var left []*asking
				left, w.asking = w.asking, nil
				for _, k := range left {
					if k.at == at {
						w.hear(at, k.post, k.post, nil)
					} else {
						w.asking = append(w.asking, k)
					}
				}
			case 9: // the answer of one was lost
				if len(w.runs) > 0 {
					p := w.runs[which(len(w.runs), "again")].post
					w.hear(which(2, "at"), p, p, nil)
				}
			}
		}
		seen := map[id.RunID]bool{}
		for i, r := range w.runs {
			if seen[r.post.Run] || r.seq != w.first+2*int64(i) {
				t.Fatalf("run %d has place %d, accepted before: %v", i, r.seq, seen[r.post.Run])
			}
			seen[r.post.Run] = true
		}
	})
	for what, n := range map[string]int{"accepted": accepted, "refused": refused, "answered too late": stale, "moved": moved, "came again": repeated, "full": full} {
		if n == 0 {
			t.Errorf("none %s: void", what)
		}
	}
}
