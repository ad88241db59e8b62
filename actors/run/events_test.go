package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/actors/sweep"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// withEndpoint gives the tenant an endpoint that subscribes to all events.
func withEndpoint(w *world) { w.hears = func(t id.TenantID) bool { return t == w.tenant } }

func (w *world) endpoint(t id.TenantID) {
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.com/', '{*}', '\x00')`, t, id.WebhookID{UUID: id.NewAnywhere()})
}

// named returns the ids and times in the world, by the names that tests use.
func (w *world) named() (names []string, times map[string][]string) {
	w.t.Helper()
	names, times = []string{w.agent.String(), "AGENT"}, map[string][]string{}
	rows, err := w.pool.Query(context.Background(), `
		SELECT 'RUN' || row_number() OVER (ORDER BY id), id::text, 'finished_at', finished_at, NULL::timestamptz FROM runs
		UNION ALL SELECT 'THREAD' || row_number() OVER (ORDER BY id), id::text, '', NULL, NULL FROM threads
		UNION ALL SELECT 'APPROVAL' || row_number() OVER (ORDER BY run_id, step_idx), id::text, 'decided_at', decided_at, expires_at FROM approvals
		UNION ALL SELECT 'APPROVAL', id::text, 'asked', created_at + interval '1 hour', NULL FROM approvals`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, uuid, what string
		var at, expires *time.Time
		if err := rows.Scan(&name, &uuid, &what, &at, &expires); err != nil {
			w.t.Fatal(err)
		}
		note := func(field string, at *time.Time, as string) {
			if at != nil {
				times[uuid] = append(times[uuid], fmt.Sprintf(`"%s":"%s"`, field, at.UTC().Format(time.RFC3339Nano)), fmt.Sprintf(`"%s":"%s"`, field, as))
			}
		}
		switch what {
		case "asked": // a test may have moved created_at since
			note("expires_at", at, "AS ASKED")
			continue
		case "decided_at":
			note("expires_at", expires, "EXPIRES")
		}
		note(what, at, strings.ToUpper(strings.TrimSuffix(what, "_at")))
		names = append(names, uuid, name)
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return names, times
}

// reported returns the pending deliveries, sorted: type and data, with ids and times replaced by
// the names of named.
func (w *world) reported() (out []string) {
	w.t.Helper()
	w.is("0", `SELECT count(*)::text FROM webhook_deliveries WHERE tenant_id <> $1 OR status <> 'pending' OR attempts <> 0 OR next_attempt_at <> created_at`, w.tenant)
	names, times := w.named()
	rows, err := w.pool.Query(context.Background(), `SELECT event_id, type, body, created_at FROM webhook_deliveries`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			event   id.EventID
			kind    string
			body    []byte
			created time.Time
			e       webhook.Envelope
		)
		if err := rows.Scan(&event, &kind, &body, &created); err != nil {
			w.t.Fatal(err)
		}
		if err := json.Unmarshal(body, &e); err != nil || e.ID != event.String() || string(e.Type) != kind || !e.CreatedAt.Equal(created) {
			w.t.Errorf("the body %s of event %s, type %s, created at %s: %v", body, event, kind, created, err)
		}
		data := string(e.Data)
		for uuid, of := range times {
			if strings.Contains(data, `_id":"`+uuid+`"`) {
				data = strings.NewReplacer(of...).Replace(data)
			}
		}
		out = append(out, kind+" "+strings.NewReplacer(names...).Replace(data))
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// reportedOnce checks that each end of a run, and each opening and end of an approval, has exactly
// one event with its data.
func (w *world) reportedOnce() {
	w.t.Helper()
	w.is("", `WITH events AS (SELECT type, convert_from(body, 'UTF8')::json->'data' AS data FROM webhook_deliveries),
		wrong AS (
			SELECT r.id, r.status, e.said FROM runs r,
				LATERAL (SELECT coalesce(string_agg(type || ' ' || (data->>'status'), ','), '') AS said FROM events WHERE type LIKE 'run.%' AND data->>'run_id' = r.id::text) e
			WHERE e.said <> CASE WHEN r.finished_at IS NULL THEN '' WHEN r.status = 'succeeded' THEN 'run.completed succeeded' ELSE 'run.failed ' || r.status END
			UNION ALL
			SELECT a.id, a.status, e.said FROM approvals a,
				LATERAL (SELECT coalesce(string_agg(concat_ws(' ', type, data->>'status'), ',' ORDER BY type), '') AS said FROM events WHERE type LIKE 'approval.%' AND data->>'approval_id' = a.id::text) e
			WHERE e.said <> CASE WHEN a.status = 'pending' THEN '' ELSE 'approval.decided ' || a.status || ',' END || 'approval.requested'
		)
		SELECT coalesce(string_agg(concat_ws(' ', id, status, 'is reported as', said), E'\n'), '') FROM wrong`)
}

// sweeps fires timers and wakes runs until the test ends.
func (w *world) sweeps() {
	s := sweep.New(sweep.Config{Node: w.node, Rows: feed.NewSweep(w.pool), Log: zerolog.Nop(), Every: 10 * time.Millisecond})
	if err := s.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Stop)
}

func (w *world) cancels(r id.RunID) {
	w.t.Helper()
	w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "user:1"}})
}

// gated returns a run that waits for its approvals.
func (w *world) gated(turn string) id.RunID {
	w.t.Helper()
	r := w.post(w.newThread(), turn)
	w.waits(r)
	return r
}

const (
	oneGate  = "/call gate.one\n/say Done."
	twoGates = "/call gate.one\n/call gate.climb\n/say Done."
)

// TestReports has every way in which a run ends and an approval opens, is escalated or ends
// (service.md, Run status, Approval status; open-parts.md, Webhook data). testdata/events.txt holds
// the deliveries after each.
func TestReports(t *testing.T) {
	const guarded = `{"model":{"provider":"simulated","name":"s"},"output_schema":{"type":"object","required":["n"]}}`
	vote := func(who string, action lifecycle.Action) msg.Decide {
		m := ballot(who, action)
		if action == lifecycle.ActionEdit {
			m.EditedArgs = json.RawMessage(`{"n":1}`)
		}
		return m
	}
	decided := func(last msg.Decide) func(w *world) {
		return func(w *world) {
			r := w.gated(oneGate)
			if last.Action == lifecycle.ActionApprove || last.Action == lifecycle.ActionEdit {
				w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionApprove))
			}
			w.voted(w.approval(r, 1), last)
			w.ends(r)
		}
	}
	// unheard makes the first commit of a kind durable but loses the answer.
	unheard := func(w *world, of func(c *journal.Commit) bool) {
		var once sync.Once
		w.writer.fails = func(c *journal.Commit) (err error) {
			if of(c) {
				once.Do(func() {
					if err = w.writer.Writer.Do(context.Background(), c); err == nil {
						err = journal.ErrUnsettled
					}
				})
			}
			return err
		}
	}
	cases := []struct {
		name, manifest string // empty: toolAgent
		play           func(w *world)
	}{
		{"run: finishes", "", func(w *world) { w.ends(w.post(w.newThread(), "/say <Done> & dusted.")) }},
		{"run: finishes, one-off and with a price", guarded, func(w *world) {
			w.models.price = model.Price{InputPerMTok: 1e6, OutputPerMTok: 2e6}
			w.ends(w.one(`"/json {\"n\":1}"`))
		}},
		{"run: finishes after a handoff", "", func(w *world) {
			w.newAgent("b", simulatedAgent, true)
			w.ends(w.post(w.newThread(), "/call builtin:handoff {\"to\":\"b\"}\n/say I am B."))
		}},
		{"run: fails, the model", `{"model":{"provider":"gone","name":"m"}}`, func(w *world) { w.ends(w.one(`"x"`)) }},
		{"run: fails, a limit of steps", `{"model":{"provider":"simulated","name":"s"},"limits":{"max_steps":1}}`, func(w *world) { w.ends(w.post(w.newThread(), "/call a.b\n/say x")) }},
		{"run: fails, its time is up", `{"model":{"provider":"simulated","name":"s"},"limits":{"max_seconds":1}}`, func(w *world) {
			w.hold()
			w.ends(w.post(w.newThread(), "x"))
		}},
		{"run: fails, the output is not as demanded", guarded, func(w *world) { w.ends(w.one(`"/say no"`)) }},
		{"run: fails, its rows are refused", "", func(w *world) {
			w.writer.fails = func(c *journal.Commit) error {
				if becomes(c, lifecycle.RunSucceeded) {
					return fmt.Errorf("%w: no", journal.ErrRefused)
				}
				return nil
			}
			w.ends(w.one(`"/say poison"`))
		}},
		{"run: fails, its version is not there", "", func(w *world) {
			w.version = 7
			w.ends(w.post(w.newThread(), "x"))
		}},
		{"run: cancelled while queued, and while running", simulatedAgent, func(w *world) {
			w.hold()
			th := w.newThread()
			running := w.post(th, "a")
			w.speaking(running)
			w.cancels(w.post(th, "b"))
			w.cancels(running)
			w.cancels(running) // a repeat
		}},
		{"run: cancelled while a tool is called", "", func(w *world) {
			began := w.tools.holds()
			r := w.post(w.newThread(), "/call free.a\n/say Done.")
			<-began
			w.cancels(r)
		}},
		{"run: cancelled while waiting, one approval decided before", "", func(w *world) {
			r := w.gated(twoGates)
			w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
			w.waits(r)
			w.cancels(r)
			w.cancels(r) // a repeat
		}},
		{"run: its thread is deleted, one waiting and one queued", "", func(w *world) {
			th := w.newThread()
			waiting := w.post(th, oneGate)
			w.waits(waiting)
			queued := w.post(th, "b")
			w.ask(w.address(msg.KindThread, th.UUID), msg.DeleteThread{By: msg.By{Actor: "user:1"}})
			w.ends(waiting)
			w.ends(queued)
		}},
		{"run: its thread is deleted and the node dies", "", func(w *world) {
			th := w.newThread()
			waiting := w.post(th, oneGate)
			w.waits(waiting)
			queued := w.post(th, "b")
			w.exec(`UPDATE threads SET deleted_at = now(), version = version + 1 WHERE id = $1`, th)
			w.restart()
			w.sweeps()
			w.node.Tell(w.address(msg.KindThread, th.UUID), durable.Wake{})
			w.ends(waiting)
			w.ends(queued)
		}},
		{"run: goes on after a crash", simulatedAgent, func(w *world) {
			w.hold()
			r := w.post(w.newThread(), "/say Again.")
			w.speaking(r)
			w.restart()
			w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{})
			w.ends(r)
		}},
		{"run: its end was not heard", simulatedAgent, func(w *world) {
			unheard(w, func(c *journal.Commit) bool { return becomes(c, lifecycle.RunSucceeded) })
			th := w.newThread()
			w.post(th, "/say a")
			w.ends(w.post(th, "/say b"))
		}},
		{"run: a child, and its approval", "", func(w *world) {
			r := w.gated(oneGate)
			w.exec(`UPDATE runs SET parent_run_id = $1 WHERE id = $2`, id.RunID{UUID: id.NewAnywhere()}, r)
			w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
			w.ends(r)
		}},
		{"run: a child that is cancelled while waiting", "", func(w *world) {
			r := w.gated(oneGate)
			w.exec(`UPDATE runs SET parent_run_id = $1 WHERE id = $2`, id.RunID{UUID: id.NewAnywhere()}, r)
			w.cancels(r)
		}},
		{"approval: approve, distinct approvals reach required_approvals", "", decided(vote("user:b", lifecycle.ActionApprove))},
		{"approval: edit, threshold reached", "", decided(vote("user:b", lifecycle.ActionEdit))},
		{"approval: reject", "", decided(vote("user:b", lifecycle.ActionReject))},
		{"approval: respond", "", decided(vote("user:b", lifecycle.ActionRespond))},
		{"approval: a decision that is repeated", "", func(w *world) {
			r := w.gated(oneGate)
			m := vote("user:b", lifecycle.ActionReject)
			m.Op = id.OpID{UUID: id.New(r.Shard())}
			for range 3 {
				w.voted(w.approval(r, 1), m)
			}
			w.ends(r)
		}},
		{"approval: two of one run, one after the other", "", func(w *world) {
			r := w.gated("/call gate.one\n/call gate.two\n/say Done.")
			d := w.watched(nil)
			w.voted(w.approval(r, 2), vote("user:b", lifecycle.ActionReject))
			w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
			w.ends(r)
			if n := d.Load(); n != 2 {
				w.t.Errorf("%d decisions: the test proves nothing", n)
			}
		}},
		{"approval: a decision whose answer is lost", "", func(w *world) {
			r := w.gated(oneGate)
			unheard(w, func(c *journal.Commit) bool { return journaltest.Row[*engine.ApprovalUpdate](c) != nil })
			if _, err := w.votes(w.approval(r, 1), vote("user:a", lifecycle.ActionReject)); !isCode(err, problem.CodeUnavailable) {
				w.t.Errorf("the test proves nothing: %v", err)
			}
			w.votes(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
			w.looks(r, w.approval(r, 1))
			w.ends(r)
		}},
		{"approval: SLA elapsed", "", func(w *world) {
			r := w.gated(oneGate)
			w.exec(`UPDATE approvals SET expires_at = now()`)
			w.exec(`UPDATE timers SET due_at = now()`)
			w.sweeps()
			w.ends(r)
		}},
		{"approval: SLA elapsed, found by a late decision", "", func(w *world) {
			r := w.gated(oneGate)
			w.exec(`UPDATE approvals SET expires_at = now()`)
			if _, err := w.votes(w.approval(r, 1), vote("user:a", lifecycle.ActionApprove)); !isCode(err, problem.CodeAlreadyDecided) {
				w.t.Errorf("decided: %v", err)
			}
			w.ends(r)
		}},
		{"approval: SLA elapsed, and the run is cancelled under on_timeout: cancel_run", "", func(w *world) {
			r := w.gated("/call gate.cancel\n/call gate.one\n/say Done.")
			w.exec(`UPDATE approvals SET expires_at = now() WHERE step_idx = 1`)
			w.voted(w.approval(r, 1), durable.TimerDue{Name: msg.TimerExpire})
			w.ends(r)
			w.voted(w.approval(r, 1), durable.TimerDue{Name: msg.TimerExpire}) // a repeat
		}},
		{"approval: escalated, then decided", "", func(w *world) {
			r := w.gated("/call gate.climb\n/say Done.")
			w.exec(`UPDATE timers SET due_at = now() WHERE name = 'escalate'`)
			for range 2 { // a repeat
				w.voted(w.approval(r, 1), durable.TimerDue{Name: msg.TimerEscalate})
			}
			w.voted(w.approval(r, 1), vote("user:b", lifecycle.ActionReject))
			w.ends(r)
		}},
		{"approval: escalated, then cancelled with its run", "", func(w *world) {
			r := w.gated("/call gate.climb\n/say Done.")
			w.exec(`UPDATE timers SET due_at = now() WHERE name = 'escalate'`)
			w.voted(w.approval(r, 1), durable.TimerDue{Name: msg.TimerEscalate})
			w.cancels(r)
		}},
		{"approval: the frozen arguments were changed", "", func(w *world) {
			r := w.gated(oneGate)
			w.exec(`UPDATE approvals SET digest = sha256('x'), required_approvals = 1`)
			w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionApprove))
			w.ends(r)
		}},
		{"approval: decided, and its agent cannot be run any more", "", func(w *world) {
			r := w.gated(oneGate)
			w.exec(`DELETE FROM agent_versions`)
			w.restart()
			w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
			w.ends(r)
		}},
		{"approval: decided after a crash", "", func(w *world) {
			r := w.gated(oneGate)
			w.restart()
			w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
			w.ends(r)
		}},
		{"approval: its decision meets the run's cancel", "", func(w *world) {
			r := w.gated(oneGate)
			if _, err := w.votes(w.approval(r, 1), vote("user:a", lifecycle.ActionApprove)); err != nil {
				w.t.Errorf("the first of two: %v", err)
			}
			var once sync.Once
			w.between = func() { once.Do(func() { w.cancels(r) }) }
			if _, err := w.votes(w.approval(r, 1), vote("user:b", lifecycle.ActionApprove)); !isCode(err, problem.CodeAlreadyDecided) {
				w.t.Errorf("decided: %v", err)
			}
		}},
		{"approval: the run's cancel meets a decision and an escalation", "", func(w *world) {
			r := w.gated("/call gate.one\n/call gate.climb\n/say Done.")
			w.exec(`UPDATE timers SET due_at = now() WHERE name = 'escalate'`)
			meets := 0
			w.writer.fails = func(c *journal.Commit) error {
				if !becomes(c, lifecycle.RunCancelled) {
					return nil
				}
				switch meets++; meets {
				case 1:
					w.voted(w.approval(r, 1), vote("user:a", lifecycle.ActionReject))
				case 2:
					w.voted(w.approval(r, 2), durable.TimerDue{Name: msg.TimerEscalate})
				}
				return nil
			}
			w.cancels(r)
			if meets != 3 {
				w.t.Errorf("the cancel was committed %d times, want 3", meets)
			}
		}},
	}
	golden := readGolden(t)
	if !*update && len(golden) != len(cases) {
		t.Errorf("%s has %d cases, want %d", goldenFile, len(golden), len(cases))
	}
	got := make([]string, len(cases))
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			manifest := c.manifest
			if manifest == "" {
				manifest = toolAgent
			}
			w := newWorld(t, manifest, withTools, withEndpoint)
			stranger := id.TenantID{UUID: id.NewAnywhere()}
			w.exec(`INSERT INTO tenants (id, name) VALUES ($1, 'X')`, stranger)
			w.endpoint(stranger)
			c.play(w)
			if got[i] = strings.Join(w.reported(), "\n") + "\n"; !*update && got[i] != golden[c.name] {
				t.Errorf("got\n%s\nwant\n%s", got[i], golden[c.name])
			}
		})
	}
	if *update {
		t.Cleanup(func() { // the cases have run by then
			var doc bytes.Buffer
			for i, c := range cases {
				fmt.Fprintf(&doc, "# %s\n%s\n", c.name, got[i])
			}
			if err := os.WriteFile(goldenFile, doc.Bytes(), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
}

const goldenFile = "testdata/events.txt"

// readGolden returns the golden file by the name of the case.
func readGolden(t *testing.T) map[string]string {
	t.Helper()
	doc, err := os.ReadFile(goldenFile)
	if err != nil && !(*update && errors.Is(err, os.ErrNotExist)) {
		t.Fatal(err)
	}
	out := map[string]string{}
	for section := range strings.SplitSeq(string(doc), "# ") {
		if name, rows, ok := strings.Cut(section, "\n"); ok {
			out[name] = strings.TrimSuffix(rows, "\n")
		}
	}
	return out
}

// Without a subscriber no event is made. Each commit asks once.
func TestWithoutSubscribers(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, withEndpoint)
	asked := make(chan id.TenantID, 100)
	hears := w.hears
	w.hears = func(t id.TenantID) bool { asked <- t; return !hears(t) }
	w.restart()
	w.writer.fails = func(c *journal.Commit) error {
		if len(c.Events) > 0 {
			t.Errorf("reported %s", c.Events[0].Body)
		}
		return nil
	}
	r := w.gated(twoGates)
	w.voted(w.approval(r, 1), ballot("user:a", lifecycle.ActionReject))
	w.waits(r)
	w.cancels(r)
	if n := len(asked); n != 5 { // two opened, one decided, one withdrawn, the end
		t.Errorf("asked %d times", n)
	}
	for range len(asked) {
		if got := <-asked; got != w.tenant {
			t.Errorf("asked about %s", got)
		}
	}
}

// A tenant gets its first endpoint when its run has ended and the commit of that end is not sent
// yet: nothing made an event of it, because the node knew of no endpoint. The end is reported.
func TestTheFirstEndpointIsCreatedWhileARunEnds(t *testing.T) {
	var known atomic.Bool
	w := newWorld(t, simulatedAgent)
	w.hears = func(id.TenantID) bool { return known.Load() }
	w.restart()
	var once sync.Once
	w.writer.fails = func(c *journal.Commit) (err error) {
		if run, ok := c.Rows[0].(*engine.RunUpdate); ok && run.FinishedAt != nil {
			once.Do(func() {
				if len(c.Events) > 0 {
					t.Error("an event is made without an endpoint")
				}
				w.endpoint(w.tenant)
				known.Store(true)
				err = w.writer.Writer.(*journal.Writer).Outdate(t.Context(), w.tenant)
			})
		}
		return err
	}
	r := w.post(w.newThread(), "/say Done.")
	w.ends(r)
	w.is("1", `SELECT count(*)::text FROM webhook_deliveries WHERE type = 'run.completed'`)
	w.is("1", `SELECT count(*)::text FROM messages WHERE run_id = $1 AND role = 'assistant'`, r)
}
