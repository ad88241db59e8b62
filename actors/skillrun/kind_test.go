package skillrun_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/actors/skillrun"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
)

// A form is filled, a person approves, and one click commits it: with receipt, checks, result,
// audit, usage and event.
func TestARunCommitsOnce(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	c := w.calls(n, w.agentRun(), 7).prepared()
	if n.Active(c.address()) || s.pages() != 0 {
		t.Errorf("it waits in memory, or with %d pages open", s.pages())
	}
	if got := w.text(`SELECT precommit::text FROM browser_skill_runs WHERE id = $1`, c.id()); !strings.Contains(got, `"amount":"7"`) || !strings.Contains(got, "/go.jpg") {
		t.Errorf("preview %s", got)
	}
	if sealed := w.text(`SELECT encode(args, 'escape') FROM browser_skill_runs`); strings.Contains(sealed, "amount") {
		t.Errorf("the values are stored in plain: %s", sealed)
	}
	c.approves().becomes("succeeded, ended, held")
	for range 3 { // repeats
		if got := c.must(c.commit()); got.Phase != skill.Ended {
			t.Errorf("%+v", got)
		}
	}
	if got := s.clicked(c.id()); len(got) != 1 || got[0] != "7" {
		t.Errorf("clicked %v", got)
	}
	if got := c.audited(); got != "run.prepared run.committed run.succeeded" {
		t.Errorf("audited %q", got)
	}
	if got := w.text(`SELECT result::text || (verification -> 0 ->> 'actual') || json_array_length(steps) FROM browser_skill_runs`); got != `{"receipt":"R1"}Paid2` {
		t.Errorf("record %s", got)
	}
	if got := w.text(`SELECT kind || ' ' || detail::text || ' ' || run_id FROM usage_records`); got != `browser_skill_run {"mode":"run","status":"succeeded","steps":2,"screenshots":2} `+c.run.String() {
		t.Errorf("usage %s", got)
	}
	if got := w.text(`SELECT string_agg(convert_from(body, 'UTF8')::json ->> 'data', ' ') FROM webhook_deliveries`); got !=
		fmt.Sprintf(`{"browser_skill_id":"%s","run_id":"%s","agent_run_id":"%s","mode":"run","status":"succeeded"}`, w.of, c.id(), c.run) {
		t.Errorf("heard %s", got)
	}
	if w.files[shot(w, c, "go")] != 1 || w.files[shot(w, c, "go.2")] != 1 {
		t.Errorf("the screenshot that the person saw was written again: %v", w.files)
	}
	testkit.Eventually(t, "all pages are closed", func() bool { return s.pages() == 0 })
	testkit.Eventually(t, "it leaves memory", func() bool { return !n.Active(c.address()) })
}

func shot(w *world, c *call, step string) string {
	return "browser-skills/" + w.tenant.String() + "/" + c.id().String() + "/" + step + ".jpg"
}

// The table of outcomes with real rows: what is committed, audited and held.
func TestOutcomesInRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := skill.Plan{Mode: skill.Run, Gate: skill.GateBefore, Commits: true}
	dry := skill.Plan{Mode: skill.DryRun, Commits: true}
	reads := skill.Plan{Mode: skill.Run, Gate: skill.GateNone}
	for name, c := range map[string]struct {
		plan  *skill.Plan
		site  func(*site)
		drive func(*testing.T, *call)
		row   string
		audit string
		click int
	}{
		"selector not found":       {nil, func(s *site) { s.missing.Store(true) }, begin, "failed not_found, ended", "run.failed", 0},
		"no browser":               {nil, func(s *site) { s.none.Store(true) }, begin, "failed step_failed, ended", "run.failed", 0},
		"a broken browser":         {nil, func(s *site) { s.broken.Store(true) }, begin, "failed step_failed, ended", "run.failed", 0},
		"another page":             {nil, func(s *site) { s.moved.Store(true) }, approve, "failed precommit_mismatch, ended", "run.prepared run.failed", 0},
		"another value":            {nil, func(s *site) { s.denies.Store(true) }, approve, "failed precommit_mismatch, ended", "run.prepared run.failed", 0},
		"a value with a secret":    {nil, func(s *site) { s.masks.Store(true) }, approve, "succeeded, ended, held", "run.prepared run.committed run.succeeded", 1},
		"a failed check":           {nil, func(s *site) { s.fails.Store(true) }, approve, "verification_failed verification_failed, ended, held", "run.prepared run.committed run.failed run.compensated", 1},
		"a lost click":             {nil, func(s *site) { s.lost.Store(true) }, approve, "committing unknown_outcome, ended, held", "run.prepared run.failed", 1},
		"before any step":          {&before, nil, approve, "succeeded, ended, held", "run.prepared run.committed run.succeeded", 1},
		"a dry run":                {&dry, nil, begin, "succeeded, ended", "dry_run", 0},
		"a dry run that fails":     {&dry, func(s *site) { s.missing.Store(true) }, begin, "failed not_found, ended", "dry_run", 0},
		"a read":                   {&reads, nil, begin, "succeeded, ended", "run.succeeded", 0},
		"a read whose check fails": {&reads, func(s *site) { s.fails.Store(true) }, begin, "failed verification_failed, ended", "run.failed", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := w.in(t), newSite()
			if c.site != nil {
				c.site(s)
			}
			plans := []skill.Plan{}
			if c.plan != nil {
				plans = append(plans, *c.plan)
			}
			run := w.calls(w.node(s), w.agentRun(), 7, plans...)
			c.drive(t, run)
			run.becomes(c.row)
			if got := run.audited(); got != c.audit {
				t.Errorf("audited %q", got)
			}
			if got := len(s.clicked(run.id())); got != c.click {
				t.Errorf("%d clicks", got)
			}
			if got := w.text(`SELECT count(*) FROM usage_records WHERE run_id = $1`, run.run); got != "1" {
				t.Errorf("%s usage records", got)
			}
			if got := w.text(`SELECT fault ->> 'no_browser' FROM browser_skill_runs WHERE id = $1`, run.id()) == "true"; got != strings.HasSuffix(name, "browser") {
				t.Errorf("that there was no browser: %t", got)
			}
			if c.plan == &before && w.text(`SELECT precommit ->> 'url' FROM browser_skill_runs WHERE id = $1`, run.id()) == "" {
				t.Error("no record of the page that was committed")
			}
		})
	}
}

func begin(_ *testing.T, c *call)   { c.begins() }
func approve(_ *testing.T, c *call) { c.prepared().approves() }

// Refusals reach a waiting run by the timer that their commit sets, also if no message does.
func TestRefusalsEndARun(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	var waits []*call
	for _, status := range []string{"rejected", "responded", "expired", "cancelled"} {
		c := w.calls(n, w.agentRun(), 1).prepared()
		c.decides(status, c.args)
		waits = append(waits, c)
	}
	ended := w.calls(n, w.agentRun(), 1).prepared()
	w.exec(`UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', finished_at = now() WHERE id = $1`, ended.run)
	w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'skillrun', $2, 'look', now())`, w.tenant, ended.id())
	if sick, err := feed.NewSweep(w.pool).Diagnose(t.Context(), skillrun.Traits.Checks); err != nil || sick[0].Count != 0 {
		t.Errorf("%+v, %v", sick, err)
	}
	stays := w.calls(n, w.agentRun(), 1).prepared()
	w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'skillrun', $2, 'look', now())`, w.tenant, stays.id())
	w.sweeps(n)
	for _, c := range append(waits, ended) {
		c.becomes("rejected, ended")
		if got := c.audited(); got != "run.prepared run.rejected" {
			t.Errorf("audited %q", got)
		}
		if _, err := c.ask(c.commit()); err != nil || len(s.clicked(c.id())) > 0 {
			t.Errorf("a commit after the end: %v, %v", err, s.clicked(c.id()))
		}
	}
	testkit.Eventually(t, "no timer is left", func() bool { return w.text(`SELECT count(*) FROM timers`) == "0" })
	if got := stays.row(); got != "prepared, held" {
		t.Errorf("a look in vain: %s", got)
	}
}

// A commit is refused unless people approved exactly these arguments of this run.
func TestOnlyApprovedArgumentsAreCommitted(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	c := w.calls(n, w.agentRun(), 7).prepared()
	refused := func(why string, m any) {
		t.Helper()
		if _, err := c.ask(m); !errors.Is(err, problem.New(problem.CodeInvalidArgs, "")) {
			t.Errorf("%s: %v", why, err)
		}
	}
	refused("pending", c.commit())
	c.decides("approved", c.args)
	refused("other arguments", msg.CommitSkill{Approval: c.approval, Args: []byte(`{"amount":8,"reason":"because"}`)})
	refused("another approval", msg.CommitSkill{Approval: id.ApprovalID{UUID: id.NewAnywhere()}, Args: c.args})
	tooMuch := []byte(`{"amount":1000}`)
	c.decides("edited", tooMuch)
	refused("values outside the limits", msg.CommitSkill{Approval: c.approval, Args: tooMuch})
	if got := c.row(); got != "prepared, held" || len(s.clicked(c.id())) > 0 {
		t.Fatalf("%s, clicked %v", got, s.clicked(c.id()))
	}
	edited := []byte(`{"amount":9}`)
	c.decides("edited", edited)
	c.args = edited
	c.must(c.commit())
	c.becomes("succeeded, ended, held")
	if got := s.clicked(c.id()); len(got) != 1 || got[0] != "9" {
		t.Errorf("clicked %v", got)
	}
	if got := w.text(`SELECT precommit -> 'values' ->> 'amount' FROM browser_skill_runs`); got != "9" {
		t.Errorf("the record shows %s", got)
	}
}

// Edited values have a key of their own: what the call asked for first was not committed, and is under no key any more. If
// another run of the conversation has the values, or takes them at the same time, one of the two clicks.
func TestEditedValuesHaveTheirKey(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	edit := func(c *call, amount int) *call {
		c.args = fmt.Appendf(nil, `{"amount":%d}`, amount)
		c.decides("edited", c.args)
		return c
	}
	at := func(c *call, step int) *call { // approvals of one run are of different steps
		w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, $3, 'tool', 't', 'waiting', 3, now())`, w.tenant, c.run, step)
		c.step = step
		return c
	}
	holds := func(of *call, want *call) {
		t.Helper()
		holder, err := w.rows.Holder(t.Context(), w.tenant, of.start.Key)
		if err != nil || (holder == nil) != (want == nil) || want != nil && *holder != want.id() {
			t.Errorf("the key of %s is held by %v, %v", of.start.Values, holder, err)
		}
	}
	first := edit(w.calls(n, w.agentRun(), 7).prepared(), 9)
	first.must(first.commit())
	first.becomes("succeeded, ended, held")
	again, other := at(w.calls(n, first.run, 7), 2), at(w.calls(n, first.run, 8), 3)
	holds(again, nil)
	holds(w.calls(n, first.run, 9), first)
	again.prepared().approves().becomes("succeeded, ended, held")
	edit(other.prepared(), 9)
	other.must(other.commit())
	other.becomes("failed, ended")
	if got := w.text(`SELECT fault ->> 'message' FROM browser_skill_runs WHERE id = $1`, other.id()); !strings.Contains(got, "Another call has the values") || len(s.clicked(other.id())) > 0 {
		t.Errorf("it says %q, clicked %v", got, s.clicked(other.id()))
	}
	run := w.agentRun()
	both := []*call{edit(w.calls(n, run, 1).prepared(), 3), edit(at(w.calls(n, run, 2), 2).prepared(), 3)}
	var wg sync.WaitGroup
	for _, c := range both {
		wg.Go(func() { c.must(c.commit()) })
	}
	wg.Wait()
	testkit.Eventually(t, "both end", func() bool {
		return strings.Contains(both[0].row(), "ended") && strings.Contains(both[1].row(), "ended")
	})
	if a, b := s.clicked(both[0].id()), s.clicked(both[1].id()); len(a)+len(b) != 1 || !slices.Equal(append(a, b...), []string{"3"}) {
		t.Errorf("clicked %v and %v; %s and %s", a, b, both[0].row(), both[1].row())
	}
}

// An edit of a parameter that stands in the address is committed on the page of the new address, and on no other one.
func TestAnEditedAddressIsCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.of = w.teach(strings.NewReplacer(`"steps":[`, `"steps":[{"id":"open","kind":"navigate","value":"https://pay.test/orders/{{order}}"},`,
		`"params":[`, `"params":[{"name":"order","type":"string","required":true,"allow_in_url":true},`).Replace(definition), `{"allow_edit_params":true}`)
	for name, c := range map[string]struct {
		site func(*site)
		row  string
	}{
		"the page of the new order": {func(*site) {}, "succeeded, ended, held"},
		"another page":              {func(s *site) { s.moved.Store(true) }, "failed precommit_mismatch, ended"},
		"the page of the old order": {func(s *site) { s.stays.Store(true) }, "failed precommit_mismatch, ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := w.in(t), newSite()
			c.site(s)
			run := w.calls(w.node(s), w.agentRun(), 7)
			run.start.Values, run.args = []byte(`{"amount":7,"order":"1001"}`), []byte(`{"amount":7,"order":"1001","reason":"because"}`)
			run.prepared()
			run.args = []byte(`{"amount":7,"order":"10 02"}`)
			run.decides("edited", run.args)
			run.must(run.commit())
			run.becomes(c.row)
			if got := w.text(`SELECT precommit ->> 'url' FROM browser_skill_runs WHERE id = $1`, run.id()); strings.HasPrefix(c.row, "succeeded") && got != "https://pay.test/orders/10%2002/form" {
				t.Errorf("the record shows %s", got)
			}
		})
	}
}

// Fifty commits of one approval click once. On one node the run succeeds. Two nodes that hold the run at
// once take it over from each other: a click that was lost, or may have been, is an unknown outcome, and any
// other end is that of exactly one click.
func TestFiftyCommitsClickOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, row := range map[string]struct {
		nodes int
		ends  map[string][]int // the numbers of clicks that each end of the run allows
	}{
		"on one node": {1, map[string][]int{"succeeded, ended, held": {1}}},
		"on two nodes": {2, map[string][]int{"succeeded, ended, held": {1}, "committed unknown_outcome, ended, held": {1},
			"committing unknown_outcome, ended, held": {0, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := w.in(t), newSite()
			c := w.calls(w.node(s), w.agentRun(), 7).prepared()
			c.decides("approved", c.args)
			at := []*call{c}
			for len(at) < row.nodes {
				other := *c
				other.n = w.node(s)
				at = append(at, &other)
			}
			var wg sync.WaitGroup
			var answered atomic.Int64
			for i := range 50 {
				wg.Go(func() {
					if _, err := at[i%len(at)].ask(c.commit()); err == nil {
						answered.Add(1)
					}
				})
			}
			wg.Wait()
			if n := answered.Load(); n == 0 || row.nodes == 1 && n != 50 {
				t.Errorf("%d of 50 commits were answered", n)
			}
			testkit.Eventually(t, "it ends", func() bool { return strings.Contains(c.row(), "ended") })
			testkit.Eventually(t, "nothing goes on that could click", func() bool {
				return s.pages() == 0 && !slices.ContainsFunc(at, func(c *call) bool { return c.n.Active(c.address()) })
			})
			for _, again := range at {
				if got := again.must(c.commit()); got.Phase != skill.Ended {
					t.Errorf("a commit after the end: %+v", got)
				}
			}
			if got := s.clicked(c.id()); !slices.Contains(row.ends[c.row()], len(got)) || len(got) > 0 && got[0] != "7" {
				t.Errorf("clicked %v, and the run is %q", got, c.row())
			}
			t.Logf("%d clicks, %s", len(s.clicked(c.id())), c.row())
			receipts := w.text(`SELECT count(*) FROM audit_log WHERE target_id = $1 AND action = 'browser_skill.run.committed'`, c.id())
			if want := strings.HasPrefix(c.row(), "committing"); (receipts == "0") != want {
				t.Errorf("%s commits are audited, and the run is %q", receipts, c.row())
			}
		})
	}
}

// The tool node of a workflow runs a skill under the grants of the workflow, which its run names: the
// row has no agent. A skill that is disabled or no longer granted to it is not filled, and commits
// nothing.
func TestARunOfAWorkflow(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	flows := func(amount int) *call {
		c := w.calls(n, w.flowRun(), amount)
		c.start.Agent = nil
		return c
	}
	c := flows(7).prepared().approves()
	c.becomes("succeeded, ended, held")
	if got := w.text(`SELECT concat_ws(' ', s.agent_run_id = $2, s.agent_id, u.run_id = $2, u.agent_id) FROM browser_skill_runs s, usage_records u WHERE s.id = $1`, c.id(), c.run); got != "t t" {
		t.Errorf("its row and its usage name %q", got)
	}
	unfit := func(c *call, why string) {
		t.Helper()
		c.becomes("failed, ended")
		if got := w.text(`SELECT fault ->> 'message' FROM browser_skill_runs WHERE id = $1`, c.id()); got != why || len(s.clicked(c.id())) > 0 {
			t.Errorf("%s, clicked %v; want %s", got, s.clicked(c.id()), why)
		}
	}
	const revoked, disabled = "The skill is not granted to this workflow any more. Nothing was committed.", "The skill is disabled. Nothing was committed."
	waits := flows(8).prepared()
	w.revoked.Store(true)
	unfit(waits.approves(), revoked)
	unfit(flows(9).begins(), revoked)
	w.revoked.Store(false)
	waits = flows(8).prepared()
	w.exec(`UPDATE browser_skills SET enabled = false WHERE id = $1`, w.of)
	unfit(waits.approves(), disabled)
	unfit(flows(9).begins(), disabled)
}

// The same values in the same run have one key: a second run is refused while the first is open,
// and for good once the receipt is written. A run that committed nothing frees its key.
func TestOneKey(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	first := w.calls(n, w.agentRun(), 7).prepared()
	again := func() *call { return w.calls(n, first.run, 7) }
	taken := func(when string) {
		t.Helper()
		c := again()
		if _, err := c.ask(c.start); !errors.Is(err, problem.New(problem.CodeInUse, "")) || c.row() != "" {
			t.Errorf("%s: %v", when, err)
		}
	}
	taken("in flight")
	if got := first.must(first.start); got.Phase != skill.Waiting {
		t.Errorf("a repeat: %+v", got)
	}
	if got := w.calls(n, first.run, 8).begins().row(); got == "" {
		t.Error("other values have no run")
	}
	shows := func(want bool) {
		t.Helper()
		if got, err := store.New(w.db.API(t), nil).View(w.tenant).SkillRun(t.Context(), first.id()); err != nil || got.Duplicate != want {
			t.Errorf("it shows %+v, %v", got, err)
		}
	}
	first.must(msg.RepeatSkill{}) // too early
	first.approves().becomes("succeeded, ended, held")
	taken("committed")
	shows(false)
	audited := first.audited()
	first.must(msg.RepeatSkill{})
	version := w.text(`SELECT version FROM browser_skill_runs WHERE id = $1`, first.id())
	first.must(msg.RepeatSkill{})
	if got := w.text(`SELECT version FROM browser_skill_runs WHERE id = $1`, first.id()); got != version || first.audited() != audited {
		t.Errorf("a second repeat writes version %s after %s, and audits %s", got, version, first.audited())
	}
	shows(true)
	holder, err := w.rows.Holder(t.Context(), w.tenant, first.start.Key)
	if err != nil || holder == nil || *holder != first.id() {
		t.Errorf("holder %v, %v", holder, err)
	}
	s.missing.Store(true)
	failed := w.calls(n, w.agentRun(), 7).begins()
	failed.becomes("failed not_found, ended")
	s.missing.Store(false)
	w.calls(n, failed.run, 7).begins().becomes("prepared, held")
	if holder, err := w.rows.Holder(t.Context(), id.TenantID{UUID: id.NewAnywhere()}, first.start.Key); holder != nil || err != nil {
		t.Errorf("another tenant finds %v, %v", holder, err)
	}
}

// A skill that is deleted, disabled, taught anew or no longer granted commits nothing, whichever
// part is on its way.
func TestAWithdrawnSkillCommitsNothing(t *testing.T) {
	t.Parallel()
	for how, withdraw := range map[string]func(*world){
		"deleted":     func(w *world) { w.exec(`DELETE FROM browser_skills WHERE id = $1`, w.of) },
		"disabled":    func(w *world) { w.exec(`UPDATE browser_skills SET enabled = false WHERE id = $1`, w.of) },
		"taught anew": func(w *world) { w.exec(`UPDATE browser_skills SET revision = revision + 1 WHERE id = $1`, w.of) },
		"not granted": func(w *world) { w.revoked.Store(true) },
	} {
		for _, when := range []string{"while it waits", "in re-prepare"} {
			t.Run(how+" "+when, func(t *testing.T) {
				t.Parallel()
				w, s := newWorld(t), newSite()
				if when == "in re-prepare" {
					s.onFill = func(_ context.Context, n int) {
						if n == 2 {
							withdraw(w)
						}
					}
				}
				c := w.calls(w.node(s), w.agentRun(), 7).prepared()
				c.decides("approved", c.args)
				if when == "while it waits" {
					withdraw(w)
				}
				_, err := c.ask(c.commit())
				if how == "deleted" {
					if when == "while it waits" && !errors.Is(err, problem.NotFound("")) {
						t.Errorf("deleted: %v", err)
					}
					testkit.Eventually(t, "its page is closed", func() bool { return s.pages() == 0 && !c.n.Active(c.address()) })
				} else {
					c.becomes("failed, ended")
					if got := w.text(`SELECT fault ->> 'message' FROM browser_skill_runs`); !strings.Contains(got, "Nothing was committed") {
						t.Errorf("it says %q", got)
					}
				}
				if got := s.clicked(c.id()); len(got) > 0 {
					t.Errorf("clicked %v", got)
				}
			})
		}
	}
}

// A run whose process is gone is taken over: it prepares again before the receipt, and is not
// driven again after it.
func TestTakeover(t *testing.T) {
	t.Parallel()
	t.Run("in prepare", func(t *testing.T) {
		t.Parallel()
		w, stuck, s := newWorld(t), newSite(), newSite()
		filling := make(chan struct{}, 1)
		stuck.onFill = func(ctx context.Context, _ int) { filling <- struct{}{}; <-ctx.Done() }
		c := w.calls(w.node(stuck), w.agentRun(), 7).begins()
		<-filling
		c.n = w.node(s)
		w.sweeps(c.n)
		c.becomes("prepared, held")
		c.asked(c.args)
		c.approves().becomes("succeeded, ended, held")
	})
	t.Run("in re-prepare", func(t *testing.T) {
		t.Parallel()
		w, stuck, s := newWorld(t), newSite(), newSite()
		filling := make(chan struct{}, 1)
		stuck.onFill = func(ctx context.Context, n int) {
			if n == 2 {
				filling <- struct{}{}
				<-ctx.Done()
			}
		}
		c := w.calls(w.node(stuck), w.agentRun(), 7).prepared().approves()
		<-filling
		c.n = w.node(s)
		w.sweeps(c.n)
		c.becomes("succeeded, ended, held")
		if len(stuck.clicked(c.id())) != 0 || len(s.clicked(c.id())) != 1 {
			t.Errorf("clicked %v and %v", stuck.clicked(c.id()), s.clicked(c.id()))
		}
	})
	for name, at := range map[string]struct {
		set func(s *site, reached chan struct{}, release chan struct{})
		row string
	}{
		"in the click": {func(s *site, reached, release chan struct{}) {
			s.onClick = func(context.Context) { close(reached); <-release }
		}, "committing unknown_outcome, ended, held"},
		"in the checks": {func(s *site, reached, release chan struct{}) {
			s.onVerify = func(context.Context) { close(reached); <-release }
		}, "committed unknown_outcome, ended, held"},
		"in the compensation": {func(s *site, reached, release chan struct{}) {
			s.fails.Store(true)
			s.onUndo = func(context.Context) { close(reached); <-release }
		}, "verification_failed verification_failed, ended, held"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, stuck, s := newWorld(t), newSite(), newSite()
			reached, release := make(chan struct{}), make(chan struct{})
			at.set(stuck, reached, release)
			c := w.calls(w.node(stuck), w.agentRun(), 7).prepared().approves()
			<-reached
			c.n = w.node(s)
			w.sweeps(c.n)
			c.becomes(at.row)
			close(release) // the former activation goes on, and changes nothing
			testkit.Eventually(t, "its page is closed", func() bool { return stuck.pages() == 0 })
			if got := len(stuck.clicked(c.id())) + len(s.clicked(c.id())); got != 1 || len(s.undone) > 0 {
				t.Errorf("%d clicks, undone %v", got, s.undone)
			}
			if got := c.row(); got != at.row {
				t.Errorf("it became %s", got)
			}
		})
	}
}

// The end of the agent's run stops the part that is on its way, but not after the receipt.
func TestCancelInEachPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, at := range map[string]struct {
		set func(s *site, reached chan struct{})
		row string
	}{
		"in prepare": {func(s *site, reached chan struct{}) {
			s.onFill = func(ctx context.Context, n int) { close(reached); <-ctx.Done() }
		}, "rejected, ended"},
		"in re-prepare": {func(s *site, reached chan struct{}) {
			s.onFill = func(ctx context.Context, n int) {
				if n == 2 {
					close(reached)
					<-ctx.Done()
				}
			}
		}, "rejected, ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s, reached := w.in(t), newSite(), make(chan struct{})
			at.set(s, reached)
			c := w.calls(w.node(s), w.agentRun(), 7)
			if name == "in prepare" {
				c.begins()
			} else {
				c.prepared().approves()
			}
			<-reached
			w.exec(`UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', finished_at = now() WHERE id = $1`, c.run)
			c.must(msg.LookSkill{})
			c.becomes(at.row)
			testkit.Eventually(t, "its page is closed", func() bool { return s.pages() == 0 })
			if got := s.clicked(c.id()); len(got) > 0 {
				t.Errorf("clicked %v", got)
			}
		})
	}
	for name, plan := range map[string][]skill.Plan{"before it began": nil, "before a read began": {{Mode: skill.Run, Gate: skill.GateNone}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := w.in(t), newSite()
			c := w.calls(w.node(s), w.agentRun(), 7, plan...)
			w.exec(`UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', finished_at = now() WHERE id = $1`, c.run)
			if _, err := c.ask(msg.LookSkill{}); err != nil { // of the cancel, before StartSkill arrives
				t.Fatal(err)
			}
			c.begins().becomes("rejected, ended")
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.fills) > 0 {
				t.Errorf("%d forms were filled", len(s.fills))
			}
		})
	}
	// Its preview was performed a second time, and refused: nobody is asked about the form that stands filled, and the
	// agent's run goes on. Its key is free for the next call.
	t.Run("before its approval opened", func(t *testing.T) {
		t.Parallel()
		w, s := w.in(t), newSite()
		c := w.calls(w.node(s), w.agentRun(), 7)
		c.begins().becomes("prepared, held")
		c.must(msg.LookSkill{})
		c.becomes("rejected, ended")
	})
	// What the cancel tells the skill's run is late: the page is ready first. No form is filled a third time.
	t.Run("before it heard of it", func(t *testing.T) {
		t.Parallel()
		w, s := w.in(t), newSite()
		reached, release := make(chan struct{}), make(chan struct{})
		s.onFill = func(_ context.Context, n int) {
			if n == 2 {
				close(reached)
				<-release
			}
		}
		c := w.calls(w.node(s), w.agentRun(), 7).prepared().approves()
		<-reached
		w.exec(`UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', finished_at = now() WHERE id = $1`, c.run)
		close(release)
		c.becomes("rejected, ended")
		testkit.Eventually(t, "its page is closed", func() bool { return s.pages() == 0 })
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.clicks[c.id()]) > 0 || s.fills[c.id()] != 2 {
			t.Errorf("clicked %v, filled %d times", s.clicks[c.id()], s.fills[c.id()])
		}
	})
	t.Run("in the click", func(t *testing.T) {
		t.Parallel()
		w, s := w.in(t), newSite()
		reached, release := make(chan struct{}), make(chan struct{})
		s.onClick = func(context.Context) { close(reached); <-release }
		c := w.calls(w.node(s), w.agentRun(), 7).prepared().approves()
		<-reached
		w.exec(`UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', finished_at = now() WHERE id = $1`, c.run)
		c.must(msg.LookSkill{})
		c.must(msg.WithdrawSkill{Why: "too late"})
		c.must(durable.TimerDue{Name: msg.TimerLook}) // a second after the end of the agent's run
		close(release)
		c.becomes("succeeded, ended, held")
	})
}

// A node's places bound the sessions, and one tenant does not take all of them.
func TestPlaces(t *testing.T) { // not parallel: it counts who waits for a place
	w, s := newWorld(t), newSite()
	n := w.node(s)
	const most, each = 4, 2 // the defaults
	left := map[id.TenantID]int{}
	var mu sync.Mutex // guards filling
	filling := map[id.TenantID]int{}
	release := make(chan id.TenantID)
	s.onJob = func(ctx context.Context, j *skill.Job) {
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			filling[j.Tenant] += n
		}
		count(1)
		defer count(-1)
		select {
		case release <- j.Tenant:
		case <-ctx.Done():
		}
	}
	var all []*call
	for _, runs := range []int{5, 2, 2} {
		of := *w
		of.tenant = pgtest.Tenant(t, w.pool)
		of.agent = pgtest.Agent(t, w.pool, of.tenant)
		of.of = of.teach(definition, `{}`)
		left[of.tenant] = runs
		for range runs {
			all = append(all, of.calls(n, of.agentRun(), 7).begins())
		}
	}
	for remain := len(all); remain > 0; remain-- {
		want, now := 0, map[id.TenantID]int{}
		for _, runs := range left {
			want += min(each, runs)
		}
		want = min(most, want)
		testkit.Eventually(t, "the places are taken, and the others wait", func() bool {
			mu.Lock()
			defer mu.Unlock()
			now = maps.Clone(filling)
			at := 0
			for _, n := range now {
				at += n
			}
			return at >= want && at+waits(t) == remain
		})
		at := 0
		for tenant, n := range now {
			if at += n; n > each {
				t.Errorf("tenant %s has %d places, want at most %d", tenant, n, each)
			}
		}
		if at > most {
			t.Errorf("%d places are taken, want at most %d", at, most)
		}
		left[<-release]--
	}
	for _, c := range all {
		c.becomes("prepared, held")
	}
}

// waits is how many sessions wait for a place.
func waits(t *testing.T) int {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(skillrun.Traits.Collectors...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "svc_skillrun_waiting" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	t.Fatal("there is no svc_skillrun_waiting")
	return 0
}

// Runs that wait for a place of the node are bounded: a further one of a tenant ends, and says why.
func TestWhatWaitsForPlacesIsBounded(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	release := make(chan struct{})
	s.onFill = func(context.Context, int) { <-release }
	var all []*call
	for range 2 + 32 + 6 {
		all = append(all, w.calls(n, w.agentRun(), 7).begins())
	}
	refused := func() string {
		return w.text(`SELECT count(*) FROM browser_skill_runs WHERE status = 'failed' AND fault ->> 'no_browser' = 'true' AND fault ->> 'message' LIKE 'Too many runs%'`)
	}
	testkit.Eventually(t, "those that may not wait end", func() bool { return refused() == "6" })
	close(release)
	prepared := 0
	for _, c := range all {
		testkit.Eventually(t, "it has its turn", func() bool { return !strings.HasPrefix(c.row(), "running") })
		if c.row() == "prepared, held" {
			prepared++
		}
	}
	if got := refused(); got != "6" || prepared != 34 {
		t.Errorf("%s are refused, and %d prepared", got, prepared)
	}
}

// A commit, whose page has a place, waits for no work that waits for a place.
func TestWhatWaitsDoesNotHoldUpACommit(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s, durable.Config{MaxEffects: 4}) // of which one tenant has two, as of the places
	decided := []*call{w.calls(n, w.agentRun(), 7).prepared(), w.calls(n, w.agentRun(), 7).prepared()}
	filling, release := make(chan struct{}, 2), make(chan struct{})
	s.onFill = func(_ context.Context, of int) {
		if of == 2 {
			filling <- struct{}{}
			<-release
		}
	}
	for _, c := range decided {
		c.approves()
		<-filling
	}
	var others []*call
	for range 6 { // they have the effects when the forms are filled, and the pages that are ready have the places
		others = append(others, w.calls(n, w.agentRun(), 8).begins())
	}
	close(release)
	for _, c := range decided {
		c.becomes("succeeded, ended, held")
	}
	for _, c := range others {
		testkit.Eventually(t, "it is prepared or refused", func() bool { return c.row() == "prepared, held" || c.row() == "failed step_failed, ended" })
	}
}

// A secret is opened when it is typed, each time, and in the fresh session of a compensation too.
func TestSecrets(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	s.secret.Store(true)
	c := w.calls(w.node(s), w.agentRun(), 7).prepared()
	if got := w.opened.Load(); got != 1 {
		t.Errorf("opened %d times for the preview", got)
	}
	c.approves().becomes("succeeded, ended, held")
	if got := w.opened.Load(); got != 2 {
		t.Errorf("opened %d times", got)
	}
	s.fails.Store(true)
	c = w.calls(c.n, w.agentRun(), 8).prepared().approves()
	c.becomes("verification_failed verification_failed, ended, held")
	if got := w.text(`SELECT compensation ->> 'error' FROM browser_skill_runs WHERE id = $1`, c.id()); got != "" || w.opened.Load() != 5 {
		t.Errorf("the compensation says %q; opened %d times", got, w.opened.Load())
	}
	if w.files[shot(w, c, "enter.3")] != 1 {
		t.Errorf("the screenshots of the compensation are not its own: %v", w.files)
	}
}

// Another tenant's run is not there, and the row is sealed to its place.
func TestAnotherTenant(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	c := w.calls(w.node(s), w.agentRun(), 7).prepared()
	other := *c
	foreign := c.address()
	foreign.Tenant = pgtest.Tenant(t, w.pool)
	for _, m := range []any{other.commit(), msg.WithdrawSkill{}} {
		if _, err := c.n.Ask(t.Context(), foreign, m); !errors.Is(err, problem.NotFound("")) {
			t.Errorf("%T: %v", m, err)
		}
	}
	if row, err := w.rows.Run(t.Context(), foreign.Tenant, c.id()); row != nil || err != nil {
		t.Errorf("%+v, %v", row, err)
	}
	if at, err := w.rows.Standing(t.Context(), foreign.Tenant, &c.approval, &c.run); err != nil || at.Approval != nil || at.Ended != nil {
		t.Errorf("%+v, %v", at, err)
	}
	c.approves().becomes("succeeded, ended, held")
}

// The sealed values move to another master key, and values that do not open commit nothing.
func TestReseal(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	moved, damaged := w.calls(w.node(s), w.agentRun(), 7).prepared(), w.calls(w.node(s), w.agentRun(), 8).prepared()
	next := vault.NewSecret32([32]byte{2})
	report, err := reseal.Run(t.Context(), w.pool, vault.New(next, vault.NewSecret32([32]byte{1})), skillrun.Traits.Sealed)
	if err != nil || report.PreviousNeeded || report.Columns[0].Rewrapped != 2 {
		t.Fatalf("%+v, %v", report, err)
	}
	w.exec(`UPDATE browser_skill_runs SET args = '\x01' WHERE id = $1`, damaged.id())
	w.keys = vault.New(next)
	n := w.node(s)
	moved.n, damaged.n = n, n
	moved.approves().becomes("succeeded, ended, held")
	damaged.approves().becomes("succeeded, ended, held") // the approval's arguments are used
	if got := s.clicked(damaged.id()); len(got) != 1 || got[0] != "8" {
		t.Errorf("clicked %v", got)
	}
}

// A dry run of a person is audited as it begins: it is also there if the caller, or the node, does not live to see the end.
func TestADryRunOfAPersonIsAudited(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	begun, goOn := make(chan struct{}), make(chan struct{})
	s.onFill = func(ctx context.Context, _ int) {
		close(begun)
		select {
		case <-goOn:
		case <-ctx.Done():
		}
	}
	c := w.calls(w.node(s), w.agentRun(), 7, skill.Plan{Mode: skill.DryRun, Commits: true})
	c.start.AgentRun, c.start.Agent, c.start.Approval, c.start.By = nil, nil, nil, msg.By{Actor: "user:ada", IP: "192.0.2.7"}
	c.begins()
	<-begun
	const audited = `SELECT string_agg(action || ' ' || actor || ' ' || ip || ' ' || target_kind || ' ' || (detail ->> 'run_id') || ' ' || (detail ->> 'status'), ', ') FROM audit_log WHERE target_id = $1`
	want := "browser_skill.dry_run user:ada 192.0.2.7 browser_skill " + c.id().String() + " running"
	if got := w.text(audited, w.of); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	close(goOn)
	c.becomes("succeeded, ended")
	if got := w.text(audited, w.of); got != want {
		t.Errorf("%q at the end, want %q", got, want)
	}
}

// Old dry runs of people go. Runs of agents go with the agent's run.
func TestRetention(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), newSite()
	n := w.node(s)
	kept := w.calls(n, w.agentRun(), 7).begins()
	dry := w.calls(n, w.agentRun(), 7, skill.Plan{Mode: skill.DryRun, Commits: true})
	dry.start.AgentRun, dry.start.Agent, dry.start.Approval, dry.start.By.Actor = nil, nil, nil, "user:1"
	dry.begins().becomes("succeeded, ended")
	kept.becomes("prepared, held")
	done := w.calls(n, w.agentRun(), 8).prepared().approves()
	done.becomes("succeeded, ended, held")
	w.exec(`UPDATE browser_skill_runs SET finished_at = now() - interval '91 days' WHERE id = $1`, dry.id())
	w.exec(`UPDATE browser_skill_runs SET finished_at = now() - interval '92 days' WHERE id = $1`, done.id()) // the dry run is behind it
	w.sweeps(n)
	testkit.Eventually(t, "it goes", func() bool { return dry.row() == "" })
	if got := kept.row(); got != "prepared, held" {
		t.Error(got)
	}
	// As long as the agent's run is there, the same call finds the key of the first and clicks no second time.
	if got := done.row(); got != "succeeded, ended, held" {
		t.Errorf("the run that committed: %q", got)
	}
	if holder, err := w.rows.Holder(t.Context(), w.tenant, done.start.Key); err != nil || holder == nil || *holder != done.id() {
		t.Errorf("%v holds its key, %v", holder, err)
	}
	w.exec(`DELETE FROM approvals WHERE run_id = $1`, kept.run)
	w.exec(`DELETE FROM run_steps WHERE run_id = $1`, kept.run)
	w.exec(`DELETE FROM runs WHERE id = $1`, kept.run)
	if got := kept.row(); got != "" {
		t.Errorf("it outlives the agent's run: %s", got)
	}
}

// The kind's messages cross nodes.
func TestMessagesCross(t *testing.T) {
	t.Parallel()
	codec := msg.NewCodec(skillrun.Traits.Messages...)
	run := id.RunID{UUID: id.NewAnywhere()}
	for _, m := range []any{msg.StartSkill{Run: id.SkillRunID{UUID: id.NewAnywhere()}, Plan: skill.Plan{Mode: skill.Run}, Values: []byte(`{}`), AgentRun: &run}, msg.SkillStands{Phase: skill.Ended},
		msg.CommitSkill{Args: []byte(`{"a":1}`)}, msg.LookSkill{}, msg.WithdrawSkill{Why: "x"}, msg.RepeatSkill{}, skillrun.Clicked{Report: &skill.Report{Event: skill.Clicked, Shots: 1}}} {
		name, body, err := codec.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := codec.Decode(name, body); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%+v became %+v, %v", m, back, err)
		}
	}
}
