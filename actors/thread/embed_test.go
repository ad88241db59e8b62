package thread_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

// A new embed thread is its row, its message, its run and what is audited, in one
// commit.
func TestAThreadBeginsWithItsFirstMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	user := id.EndUserID{UUID: id.NewAnywhere()}
	w.visitor.CreatedBy = "embed:eu:" + user.String()
	s := w.saying(nil, "/say Hello.\nThere.")
	s.EndUserID = &user
	said, err := n.Say(t.Context(), w.caller(), s)
	w.must(err)
	if got := w.end(said.Run); got != "succeeded" {
		t.Fatal(got)
	}
	w.is(lines(w.visitor.CreatedBy, user.String(), "/say Hello. There.", "3", w.visitor.Agent.String()),
		`SELECT concat_ws(E'\n', created_by, end_user_id, title, next_seq, agent_id) FROM threads WHERE id = $1`, said.Thread)
	w.is("user:"+said.Message.String()+"@1 assistant@2", `SELECT string_agg(role || CASE role WHEN 'user' THEN ':' || id ELSE '' END || '@' || seq, ' ' ORDER BY seq) FROM messages WHERE thread_id = $1 AND run_id = $2`, said.Thread, said.Run)
	w.is(lines("embed_key", w.key.String(), user.String(), "1"), `SELECT concat_ws(E'\n', origin_kind, origin_id, end_user_id, thread_seq) FROM runs WHERE id = $1`, said.Run)
	w.is("message.create "+said.Message.String()+" thread.create "+said.Thread.String(), `SELECT string_agg(action || ' ' || target_id, ' ' ORDER BY action) FROM audit_log WHERE actor = $1`, w.visitor.CreatedBy)
	const row = `SELECT concat_ws(' ', version, owner_epoch) FROM threads WHERE id = $1`
	w.is("1 0", row, said.Thread) // that its run has ended is remembered, and not written
	// The next one goes on in it.
	next := w.say(n, &said.Thread, "/say Again.")
	w.is("2 1", row, said.Thread)
	if got := w.end(next.Run); got != "succeeded" {
		t.Fatal(got)
	}
	// What the tenant's back end asks for in it is that person's data too, on whichever node.
	o, _ := w.start()
	s = w.saying(&said.Thread, "/say Theirs.")
	s.Visitor, s.Origin.Kind = nil, lifecycle.OriginAPIKey
	theirs, err := o.Say(t.Context(), w.caller(), s)
	w.must(err)
	if got := w.end(theirs.Run); got != "succeeded" {
		t.Fatal(got)
	}
	w.is(lines("3", user.String(), "api_key"), `SELECT concat_ws(E'\n', count(person_id), min(person_id::text), max(origin_kind) FILTER (WHERE end_user_id IS NULL AND id = $2)) FROM runs WHERE thread_id = $1`, said.Thread, theirs.Run)
	w.is("6 7", `SELECT count(*) || ' ' || max(t.next_seq) FROM messages m JOIN threads t ON t.id = m.thread_id WHERE t.id = $1`, said.Thread)
}

// What is not there is NOT_FOUND, and nobody begins it but a Post with New; what is
// there is nobody's to begin.
func TestOnlyAPostBeginsAThread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	post := func(th id.ThreadID) msg.Post { return w.post(th, "/say hi") }
	ask := func(th id.ThreadID, m any) (any, error) { return w.ask(n, th, m) }
	th := id.ThreadID{UUID: id.New(5)}
	for _, m := range []any{post(th), msg.DeleteThread{}, msg.RunEnded{Run: id.RunID{UUID: id.New(5)}}} {
		if _, err := ask(th, m); !errors.Is(err, problem.NotFound("")) {
			t.Errorf("%T: %v", m, err)
		}
	}
	first := post(th)
	first.New = true
	for range 2 { // it may come twice
		if got, err := ask(th, first); err != nil || got != any(msg.Posted{Run: first.Run, Message: first.Message}) {
			t.Fatal(got, err)
		}
	}
	w.end(first.Run)
	for _, theirs := range []id.ThreadID{th, w.filled(1)} {
		for _, who := range []*msg.Visitor{w.posts(), {Agent: w.visitor.Agent, CreatedBy: "embed:vid:other"}} {
			other := post(theirs)
			other.New, other.Visitor = true, who
			if _, err := ask(theirs, other); !errors.Is(err, problem.NotFound("")) {
				t.Errorf("begun again: %v", err)
			}
		}
	}
	w.is("2 1 "+w.visitor.CreatedBy, `SELECT count(DISTINCT m.id) || ' ' || count(DISTINCT r.id) || ' ' || max(t.created_by) FROM threads t JOIN messages m ON m.thread_id = t.id JOIN runs r ON r.thread_id = t.id WHERE t.id = $1`, th)
	// Two activations that begin one thread: one of them does.
	o, _ := w.start()
	both := id.ThreadID{UUID: id.New(5)}
	twice := post(both)
	twice.New = true
	var wg sync.WaitGroup
	for _, n := range []*node{n, o} {
		wg.Go(func() {
			if got, err := n.Ask(context.Background(), msg.KindThread, w.tenant, both.UUID, twice); err != nil || got != any(msg.Posted{Run: twice.Run, Message: twice.Message}) {
				t.Error(got, err)
			}
		})
	}
	wg.Wait()
	w.end(twice.Run)
	w.is("1 1", `SELECT count(*) || ' ' || (SELECT count(*) FROM messages WHERE thread_id = $1 AND role = 'user') FROM runs WHERE thread_id = $1`, both)
}

// A message that cannot be stored begins nothing.
func TestAThreadThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	_, err := n.Say(t.Context(), w.caller(), w.saying(nil, "a\x00b"))
	if !errors.Is(err, problem.Invalid("", "")) {
		t.Error(err)
	}
	w.is("0", `SELECT count(*)::text FROM threads`)
}

// service.md, Embed rules: one reply at a time per thread. Security.md, 8: 100
// concurrent posts to one thread, one 202 at a time, each 409 names a run of that thread
// that was not finished.
func TestManyPostsAtOnce(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprintf("over %d activations", nodes), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var over []*node
			for range nodes {
				n, _ := w.start()
				over = append(over, n)
			}
			th := w.say(over[0], nil, "/say one").Thread
			w.end(id.RunID{UUID: w.newest(th)})

			t.Run("while a run goes on", func(t *testing.T) {
				w.models.Hold()
				errs, said := w.storm(over, th, 100, nil)
				if len(said) != 1 {
					t.Fatalf("%d were accepted", len(said))
				}
				for _, err := range errs {
					if code, run := refused(err); code != problem.CodeEmbedRunInFlight || run != said[0].String() {
						t.Fatalf("%v, of run %q, want %s", err, run, said[0])
					}
				}
				w.models.Release()
				w.end(said[0])
			})
			t.Run("while runs end", func(t *testing.T) {
				// Whoever is refused names a run that had not ended when he came.
				accepted, rounds := 0, 0
				for accepted < 12 && rounds < 50 {
					rounds++
					_, said := w.storm(over, th, 100, func() map[string]bool { return w.ended(th) })
					accepted += len(said)
				}
				if accepted < 12 {
					t.Errorf("only %d were accepted in %d storms", accepted, rounds)
				}
				w.end(id.RunID{UUID: w.newest(th)})
				w.is("0", `SELECT count(*)::text FROM runs a JOIN runs b ON b.thread_id = a.thread_id AND b.thread_seq > a.thread_seq
					WHERE a.thread_id = $1 AND b.created_at < a.finished_at`, th)
				w.is("true", `SELECT (count(*) <= 200)::text FROM messages WHERE thread_id = $1`, th)
			})
		})
	}
}

// storm posts n messages at once over the nodes, and answers the refusals and the
// accepted runs. Refusals that name what was known to have ended before are errors.
func (w *world) storm(over []*node, th id.ThreadID, n int, known func() map[string]bool) (refusals []error, accepted []id.RunID) {
	w.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			var ended map[string]bool
			if known != nil {
				ended = known()
			}
			said, err := over[i%len(over)].Say(context.Background(), w.caller(), w.saying(&th, "/say x"))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				accepted = append(accepted, said.Run)
				return
			}
			refusals = append(refusals, err)
			code, run := refused(err)
			if code == problem.CodeEmbedThreadFull {
				return
			}
			if code != problem.CodeEmbedRunInFlight || ended[run] || w.text(`SELECT count(*)::text FROM runs WHERE id = $1 AND thread_id = $2`, run, th) != "1" {
				w.t.Errorf("refused by %v, which names %q (ended %v)", err, run, ended[run])
			}
		})
	}
	close(start)
	wg.Wait()
	return refusals, accepted
}

func (w *world) ended(th id.ThreadID) map[string]bool {
	out := map[string]bool{}
	for _, r := range strings.Fields(w.text(`SELECT coalesce(string_agg(id::text, ' '), '') FROM runs WHERE thread_id = $1 AND finished_at IS NOT NULL`, th)) {
		out[r] = true
	}
	return out
}

func (w *world) newest(th id.ThreadID) (run id.UUID) {
	w.t.Helper()
	w.must(w.pool.QueryRow(context.Background(), `SELECT id FROM runs WHERE thread_id = $1 ORDER BY thread_seq DESC LIMIT 1`, th).Scan(&run))
	return run
}

// open-parts.md, Embed: accepted while messages + replies still owed + 2 ≤ 200; a run
// that ends without a reply gives its place back.
func TestAThreadIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	for _, c := range []struct {
		name  string
		begin int
		say   []string // each but the last is accepted, and its run ends
		left  string   // messages
	}{
		{"198 messages take one more and its reply", 198, []string{"/say x", "/say x"}, "200"},
		{"199 messages take none: there is no place for the reply", 199, []string{"/say x"}, "199"},
		{"200 messages take none", 200, []string{"/say x"}, "200"},
		{"a run that fails gives the place of its reply back", 197, []string{"/fail x", "/fail x", "/say x"}, "199"},
		{"and who is next takes it", 196, []string{"/fail x", "/fail x", "/say x", "/say x"}, "200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			th := w.filled(c.begin)
			for _, text := range c.say[:len(c.say)-1] {
				w.end(w.say(n, &th, text).Run)
			}
			_, err := n.Say(t.Context(), w.caller(), w.saying(&th, c.say[len(c.say)-1]))
			if code, _ := refused(err); code != problem.CodeEmbedThreadFull {
				t.Errorf("the last one: %v", err)
			}
			w.is(c.left, `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
		})
	}
	t.Run("full comes before in flight", func(t *testing.T) {
		th := w.filled(197)
		w.models.Hold()
		defer w.models.Release()
		w.say(n, &th, "/say x")
		_, err := n.Say(t.Context(), w.caller(), w.saying(&th, "/say x"))
		if code, _ := refused(err); code != problem.CodeEmbedThreadFull {
			t.Error(err)
		}
	})
	t.Run("never 201, whoever posts at once", func(t *testing.T) {
		th := w.filled(190)
		for range 20 {
			w.storm([]*node{n}, th, 20, nil)
		}
		w.end(id.RunID{UUID: w.newest(th)})
		for range 100 {
			if _, err := n.Say(t.Context(), w.caller(), w.saying(&th, "/say x")); err != nil {
				if code, _ := refused(err); code == problem.CodeEmbedThreadFull {
					break
				}
			}
			w.end(id.RunID{UUID: w.newest(th)})
		}
		w.is("200", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
	})
}

// open-parts.md, Embed: a post while the previous run waits for an approval is accepted
// and its run queued behind it; then that one is in flight.
func TestAPostBehindARunThatWaitsForAnApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	w.models.Hold()
	first := w.say(n, nil, "/say one")
	testkit.Eventually(w.t, "it runs", func() bool { return w.text(`SELECT status FROM runs WHERE id = $1`, first.Run) == "running" })
	w.exec(`UPDATE runs SET status = 'waiting_approval' WHERE id = $1`, first.Run)
	second := w.say(n, &first.Thread, "/say two")
	w.is("queued", `SELECT status FROM runs WHERE id = $1`, second.Run)
	_, err := n.Say(t.Context(), w.caller(), w.saying(&first.Thread, "/say three"))
	if code, run := refused(err); code != problem.CodeEmbedRunInFlight || run != second.Run.String() {
		t.Errorf("%v, of run %s", err, run)
	}
	// Cancelled, it is in nobody's way; the one that waits is not either.
	_, err = n.Cancel(t.Context(), w.caller(), second.Run)
	w.must(err)
	third := w.say(n, &first.Thread, "/say three")
	// Nor is it the newest that counts where an older one goes on.
	_, err = n.Cancel(t.Context(), w.caller(), third.Run)
	w.must(err)
	w.exec(`UPDATE runs SET status = 'running' WHERE id = $1`, first.Run)
	_, err = n.Say(t.Context(), w.caller(), w.saying(&first.Thread, "/say four"))
	if code, run := refused(err); code != problem.CodeEmbedRunInFlight || run != first.Run.String() {
		t.Errorf("%v, of run %s", err, run)
	}
	w.models.Release()
	w.end(first.Run)
	w.end(w.say(n, &first.Thread, "/say four").Run)
	w.is("succeeded cancelled cancelled succeeded", `SELECT string_agg(status::text, ' ' ORDER BY thread_seq) FROM runs WHERE thread_id = $1`, first.Thread)
}

// A thread is the visitor's or it is not there; nobody is told which.
func TestAForeignThread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	th := w.filled(2)
	_, unknown := n.Say(t.Context(), w.caller(), w.saying(&id.ThreadID{UUID: id.New(3)}, "/say x"))
	for name, who := range map[string]store.Visitor{
		"another visitor": {Agent: w.visitor.Agent, CreatedBy: "embed:vid:" + id.NewAnywhere().String()},
		"another agent":   {Agent: id.AgentID{UUID: id.NewAnywhere()}, CreatedBy: w.visitor.CreatedBy},
	} {
		s := w.saying(&th, "/say x")
		s.Visitor = &who
		if _, err := n.Say(t.Context(), w.caller(), s); !errors.Is(err, problem.NotFound("")) || err.Error() != unknown.Error() {
			t.Errorf("%s: %v, and %v of what is not there", name, err, unknown)
		}
	}
	// The tenant's back end may, under the same rules.
	s := w.saying(&th, "/say x")
	s.Visitor = nil
	w.models.Hold()
	said, err := n.Say(t.Context(), w.caller(), s)
	w.must(err)
	_, err = n.Say(t.Context(), w.caller(), s)
	if code, run := refused(err); code != problem.CodeEmbedRunInFlight || run != said.Run.String() {
		t.Errorf("%v, of run %s", err, run)
	}
	w.models.Release()
	w.end(said.Run)
	full := w.filled(199)
	s.Thread = &full
	_, err = n.Say(t.Context(), w.caller(), s)
	if code, _ := refused(err); code != problem.CodeEmbedThreadFull {
		t.Error(err)
	}
	// A thread of the platform is no visitor's, and takes as many as come.
	theirs := w.ofPlatform()
	s = w.saying(&theirs, "/say x")
	if _, err := n.Say(t.Context(), w.caller(), s); !errors.Is(err, problem.NotFound("")) || err.Error() != unknown.Error() {
		t.Errorf("of the platform: %v", err)
	}
	s.Visitor = nil
	w.models.Hold()
	for range 3 {
		said, err = n.Say(t.Context(), w.caller(), s)
		w.must(err)
	}
	w.models.Release()
	w.end(said.Run)
}

// An agent without a published version answers nobody, which is said after what is in
// the way in the thread; once it has one, it answers.
func TestAnAgentThatDoesNotSpeak(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	in, full, theirs := w.filled(2), w.filled(199), w.ofPlatform()
	w.exec(`UPDATE agents SET published_version = NULL WHERE id = $1`, w.visitor.Agent)
	for name, c := range map[string]struct {
		to   *id.ThreadID
		who  *store.Visitor
		code problem.Code
	}{
		"a first message":             {nil, &w.visitor, problem.CodeAgentNotPublished},
		"in a thread":                 {&in, &w.visitor, problem.CodeAgentNotPublished},
		"in a thread of the platform": {&theirs, nil, problem.CodeAgentNotPublished},
		"in a thread that is full":    {&full, &w.visitor, problem.CodeEmbedThreadFull},
		"in another visitor's":        {&in, &store.Visitor{Agent: w.visitor.Agent, CreatedBy: "embed:vid:other"}, problem.CodeNotFound},
	} {
		s := w.saying(c.to, "/say x")
		s.Visitor = c.who
		_, err := n.Say(t.Context(), w.caller(), s)
		if code, _ := refused(err); code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.is("3 0", `SELECT count(*) || ' ' || (SELECT count(*) FROM runs WHERE finished_at IS NULL) FROM threads`)
	w.exec(`UPDATE agents SET published_version = 1 WHERE id = $1`, w.visitor.Agent)
	n.ForgetAgent(w.tenant, w.visitor.Agent)
	first := w.say(n, nil, "/say x") // by a node that does not remember the version
	w.end(first.Run)
	n.ForgetAgent(w.tenant, w.visitor.Agent)
	next := w.say(n, &first.Thread, "/say x")
	w.end(next.Run)
	w.is("1 1", `SELECT string_agg(agent_version::text, ' ') FROM runs WHERE thread_id = $1`, first.Thread)
}

// An activation that has lost its thread does not decide on what comes to it by what it
// remembers.
func TestAnOldActivation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.start()
	b, _ := w.start()
	th := w.say(a, nil, "/say one").Thread
	for i := range 6 { // each time the other one has moved on
		n := []*node{b, a}[i%2]
		w.end(id.RunID{UUID: w.newest(th)})
		w.say(n, &th, "/say more")
	}
	w.end(id.RunID{UUID: w.newest(th)})
	w.is("14", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
}

// The swap of the row refuses an old activation; a message that the other activation
// has accepted is answered as the first time, and one that nobody has is accepted.
func TestARepeatToAnOldActivation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.start()
	b, _ := w.start()
	for name, th := range map[string]id.ThreadID{"of the embed API": w.filled(1), "of the platform": w.ofPlatform()} {
		t.Run(name, func(t *testing.T) {
			post := func(text string) msg.Post {
				p := w.post(th, text)
				if name == "of the platform" {
					p.Visitor = nil
				}
				return p
			}
			first, second, third := post("/fail one"), post("/fail two"), post("/fail three")
			w.posted(a, th, first) // a has the thread
			w.end(first.Run)
			w.posted(b, th, second) // b has it, and a does not know
			w.end(second.Run)
			w.posted(a, th, second)
			w.posted(a, th, first)
			w.is("3", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
			w.posted(b, th, third)
			w.end(third.Run)
			fourth := post("/fail four")
			w.posted(a, th, fourth) // nobody has accepted it
			w.end(fourth.Run)
			for _, n := range []*node{a, b} {
				for _, p := range []msg.Post{first, second, third, fourth} {
					w.posted(n, th, p)
				}
			}
			w.is("5 5", `SELECT count(*) || ' ' || (SELECT count(*) FROM runs WHERE thread_id = $1) FROM messages WHERE thread_id = $1`, th)
			// Nor does it accept what the other one's deletion has ended.
			late := post("/fail late")
			if got, err := w.ask(b, th, msg.DeleteThread{}); err != nil || got != any(msg.Done{}) {
				t.Fatal(got, err)
			}
			if _, err := w.ask(a, th, late); !errors.Is(err, problem.NotFound("")) {
				t.Error(err)
			}
			w.posted(a, th, first)
		})
	}
}

// A message that comes again is answered as the first time however long ago it was, and
// whoever was first since: under another operation than the first time, by an activation
// that remembers others only, and by one that has read the thread. It is accepted once.
func TestAPostOfLongAgoComesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	o, _ := w.start()
	begun := id.ThreadID{UUID: id.New(3)}
	const count = `SELECT count(*) || ' ' || (SELECT count(*) FROM runs WHERE thread_id = $1) || ' ' || (SELECT next_seq FROM threads WHERE id = $1) FROM messages WHERE thread_id = $1`
	for name, c := range map[string]struct {
		th        id.ThreadID
		inTurn    bool
		had, next int // messages, and the place of the first
		runs      int
	}{
		"of the embed API": {begun, true, 0, 1, 0},
		"of the platform":  {w.ofPlatform(), false, 1, 1001, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var posts []msg.Post
			for i := range 66 { // more than are remembered; each fails, and leaves one message
				p := w.post(c.th, "/fail x")
				if c.inTurn {
					p.New = i == 0
				} else {
					p.Visitor = nil
				}
				if i == 0 {
					p.Idempotency = &msg.Idempotency{Digest: [32]byte{1, byte(len(name))}, Status: 202, Response: []byte("{}")}
				}
				w.posted(n, c.th, p)
				if posts = append(posts, p); c.inTurn {
					w.end(p.Run)
				}
			}
			w.end(posts[65].Run)
			want := fmt.Sprintf("%d %d %d", c.had+66, c.runs+66, c.next+2*66)
			w.is(want, count, c.th)
			for _, node := range []*node{n, o} {
				for _, p := range slices.Concat(posts[:2], posts[64:]) {
					for range 2 {
						w.posted(node, c.th, p)
					}
				}
				w.is(want, count, c.th)
			}
			// What is remembered is not spoilt: the next one has its place.
			late := w.post(c.th, "/fail x")
			if !c.inTurn {
				late.Visitor = nil
			}
			w.posted(n, c.th, late)
			w.end(late.Run)
			w.is(fmt.Sprintf("%d %d %d", c.had+67, c.runs+67, c.next+2*67), count, c.th)
		})
	}
}

// Orders that come again after the deletion are answered as the first time, however long
// ago it was; others are NOT_FOUND.
func TestOrdersThatComeAgainAfterTheDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.start()
	o, _ := w.start()
	th := w.ofPlatform()
	var posts []msg.Post
	for range 66 {
		p := w.post(th, "/fail x")
		p.Visitor = nil
		w.posted(n, th, p)
		posts = append(posts, p)
	}
	w.end(posts[65].Run)
	deletion := msg.DeleteThread{Op: id.OpID{UUID: id.New(th.Shard())}, By: msg.By{Actor: "apikey:x"}}
	for _, node := range []*node{n, n, o, n} {
		if got, err := w.ask(node, th, deletion); err != nil || got != any(msg.Done{}) {
			t.Fatal(got, err)
		}
		for _, p := range slices.Concat(posts[:2], posts[64:]) {
			w.posted(node, th, p)
		}
		for name, m := range map[string]any{
			"another deletion":            msg.DeleteThread{Op: id.OpID{UUID: id.New(th.Shard())}},
			"a deletion without a name":   msg.DeleteThread{},
			"a post":                      w.post(th, "/say x"),
			"a post that begins a thread": func() msg.Post { p := w.post(th, "/say x"); p.New = true; return p }(),
		} {
			if _, err := w.ask(node, th, m); !errors.Is(err, problem.NotFound("")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	w.is("0 1 67", `SELECT (SELECT count(*) FROM messages WHERE thread_id = $1) || ' ' || count(*) || ' ' || (SELECT count(*) FROM runs WHERE thread_id = $1)
		FROM audit_log WHERE action = 'thread.delete' AND target_id = $1`, th)
}

// The process that deletes a thread dies before the open runs hear of it, or before the thread
// hears that they have ended. The timer of the deletion does the rest, and until it has, it
// stays.
func TestADeletionOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	cancel := func(m any) bool { _, ok := m.(msg.CancelRun); return ok }
	due := func(w *world, th id.ThreadID) {
		w.is("empty", `SELECT string_agg(name, ' ') FROM timers WHERE kind = 'thread' AND entity_id = $1 AND due_at > now()`, th)
		w.exec(`UPDATE timers SET due_at = now() WHERE entity_id = $1`, th)
	}
	t.Run("before a run that waits for an approval hears of it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.lost = cancel
		n, stop := w.start()
		th, waits, queued := w.waiting()
		if _, err := w.ask(n, th, msg.DeleteThread{By: msg.By{Actor: "apikey:x"}}); err != nil {
			t.Fatal(err)
		}
		// The timer is due, and the cancels are lost again: it comes again.
		due(w, th)
		halt := w.timers(n)
		testkit.Eventually(t, "the timer is claimed", func() bool {
			return w.text(`SELECT (claimed_until IS NOT NULL)::text FROM timers WHERE entity_id = $1`, th) == "true"
		})
		halt()
		stop()
		w.is("waiting_approval queued 0", `SELECT string_agg(status::text, ' ' ORDER BY thread_seq) || ' ' || (SELECT count(*) FROM messages WHERE thread_id = $1)
			FROM runs WHERE thread_id = $1 AND finished_at IS NULL`, th)
		w.exec(`UPDATE timers SET claimed_until = NULL WHERE entity_id = $1`, th)
		w.lost = nil
		n, _ = w.start()
		w.timers(n)
		for _, r := range []id.RunID{waits, queued} {
			if got := w.end(r); got != "cancelled" {
				t.Error(got)
			}
		}
		w.emptied(th)
	})
	t.Run("before the thread hears that its run has replied", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.lost = func(m any) bool { _, ends := m.(msg.RunEnded); return ends || cancel(m) }
		n, stop := w.start()
		w.models.Hold()
		said := w.say(n, nil, "/say one")
		testkit.Eventually(t, "it runs", func() bool { return w.text(`SELECT status FROM runs WHERE id = $1`, said.Run) == "running" })
		if _, err := w.ask(n, said.Thread, msg.DeleteThread{By: msg.By{Actor: "apikey:x"}}); err != nil {
			t.Fatal(err)
		}
		w.models.Release()
		if got := w.end(said.Run); got != "succeeded" {
			t.Fatal(got)
		}
		stop()
		w.is("assistant", `SELECT string_agg(role::text, ' ') FROM messages WHERE thread_id = $1`, said.Thread)
		due(w, said.Thread)
		w.lost = nil
		n, _ = w.start()
		w.timers(n)
		w.emptied(said.Thread)
	})
	t.Run("a thread without an open run needs no timer", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		n, _ := w.start()
		th := w.filled(3)
		if _, err := w.ask(n, th, msg.DeleteThread{By: msg.By{Actor: "apikey:x"}}); err != nil {
			t.Fatal(err)
		}
		w.emptied(th)
	})
}

// Two messages that were both admitted, as the thread stood when each looked, are not
// both accepted: the one that is second looks again, and finds the run of the first.
func TestTwoPostsThatSawTheSame(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprintf("over %d activations", nodes), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var over []*node
			var looked atomic.Int64
			var both sync.WaitGroup // have looked
			both.Add(2)
			w.stood = func(id.RunID) {
				if looked.Add(1) <= 2 {
					both.Done()
					both.Wait()
				}
			}
			for range nodes {
				n, _ := w.start()
				over = append(over, n)
			}
			th := w.filled(2)
			w.models.Hold()
			var posts sync.WaitGroup
			said, errs := make([]*platform.Said, 2), make([]error, 2)
			for i := range 2 {
				posts.Go(func() {
					said[i], errs[i] = over[i%nodes].Say(context.Background(), w.caller(), w.saying(&th, "/say x"))
				})
			}
			posts.Wait()
			first := slices.Index(errs, nil)
			if first < 0 {
				t.Fatal(errs)
			}
			if code, run := refused(errs[1-first]); code != problem.CodeEmbedRunInFlight || run != said[first].Run.String() {
				t.Errorf("%v, of run %s", errs, run)
			}
			if looked.Load() != 3 {
				t.Errorf("looked %d times", looked.Load())
			}
			w.models.Release()
			w.end(said[first].Run)
			w.is("4", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
		})
	}
}

// What a message was admitted by and what the thread has differ for a moment only. A
// thread that reads how it stands takes other messages meanwhile.
func TestWhoIsOvertakenLooksAgain(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprintf("over %d activations", nodes), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var over []*node
			var th id.ThreadID
			var looked atomic.Int64
			w.stood = func(id.RunID) {
				if looked.Add(1) == 1 { // somebody is accepted, and answered, in between
					said, err := over[nodes-1].Say(context.Background(), w.caller(), w.saying(&th, "/say first"))
					if err != nil {
						t.Error(err)
						return
					}
					w.end(said.Run)
				}
			}
			for range nodes {
				n, _ := w.start()
				over = append(over, n)
			}
			th = w.filled(2)
			said, err := over[0].Say(t.Context(), w.caller(), w.saying(&th, "/say second"))
			w.must(err)
			w.end(said.Run)
			w.is("6", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
			if looked.Load() != 3 { // twice for the second
				t.Errorf("looked %d times", looked.Load())
			}
		})
	}
}

// security.md, 13: one run per idempotency key. A request that finds its own run in the
// way is a repeat, and no refusal.
func TestARepeatIsNotInItsOwnWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.start()
	b, _ := w.start()
	th := w.filled(2)
	w.models.Hold()
	keyed := func(key string) *edge.Caller {
		c := w.caller()
		c.Idem = &edge.Idempotency{IdemKey: edge.IdemKey{Tenant: w.tenant, Principal: c.Principal, Method: "POST", Path: "/v1/embed/messages", Key: key}, Status: 202}
		return c
	}
	said, err := a.Say(t.Context(), keyed("k"), w.saying(&th, "/say x"))
	w.must(err)
	for _, n := range []*node{a, b} {
		if _, err := n.Say(t.Context(), keyed("k"), w.saying(&th, "/say x")); !errors.Is(err, edge.ErrReplay) {
			t.Error(err)
		}
		_, err := n.Say(t.Context(), keyed("other"), w.saying(&th, "/say x"))
		if code, run := refused(err); code != problem.CodeEmbedRunInFlight || run != said.Run.String() {
			t.Error(err)
		}
	}
	// Two at once, on two nodes: one run, and the other is told to read the answer.
	w.models.Release()
	w.end(said.Run)
	w.models.Hold()
	var wg sync.WaitGroup
	var accepted, replayed atomic.Int64
	for i := range 20 {
		wg.Go(func() {
			switch _, err := []*node{a, b}[i%2].Say(context.Background(), keyed("at once"), w.saying(&th, "/say x")); {
			case err == nil:
				accepted.Add(1)
			case errors.Is(err, edge.ErrReplay):
				replayed.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 1 || replayed.Load() != 19 {
		t.Errorf("%d accepted, %d replayed", accepted.Load(), replayed.Load())
	}
}
