//go:build !race

package run

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/webhook"
)

// The laws of a run are checked in a world of tables in memory. The machine, the rows and the loading
// are the real ones. The host is a small one that may die before and after every commit; tools, people
// and clocks are random.

// dice decides what happens next; name names the decision.
type dice interface {
	roll(lo, hi int, what string) int
}

type rapidDice struct{ t *rapid.T }

func (d rapidDice) roll(lo, hi int, what string) int { return rapid.IntRange(lo, hi).Draw(d.t, what) }

type randDice struct{ r *rand.Rand }

func (d randDice) roll(lo, hi int, _ string) int { return lo + d.r.IntN(hi-lo+1) }

// broken is the text of a law that was violated.
type broken string

// mutant is a defect that the laws must find.
type mutant struct {
	name  string
	early bool // performs effects before the commit is durable
	// decided changes a decision on m in state s.
	decided func(s State, m any, d *decision)
	owed    func(s State, owed []durable.Effect) []durable.Effect
	rows    func(c *journal.Commit)
	loaded  func(s *State)
}

type stepRow struct {
	engine.StepInsert
	end *engine.StepUpdate
}

type approvalRow struct {
	id        id.ApprovalID
	step      int
	status    lifecycle.ApprovalStatus
	decision  lifecycle.Action
	feedback  string
	edited    []byte // sealed
	digest    [32]byte
	onTimeout string
	assignee  lifecycle.Role
	expires   time.Time
	version   int64
}

// tables is the durable state.
type tables struct {
	run       engine.RunUpdate
	version   int64
	epoch     int64
	steps     []*stepRow
	marks     []engine.Mark
	approvals map[id.ApprovalID]*approvalRow
	timers    map[journal.TimerKey]time.Time
	replies   int
	usageIn   int64
}

// lawWorld is the world of one run.
type lawWorld struct {
	dice
	k      *kind
	mc     Machine
	bug    mutant
	agents map[id.AgentID]string
	db     tables
	now    time.Time

	mem   *durable.Loaded[State] // nil: not in memory
	doing map[string]durable.Effect

	sent   map[int][][]byte // arguments that reached tools, by step
	plans  map[int]tool.Planned
	called map[int]tool.Outcome // outcomes of tools that the run received, by step
	turns  map[int]*model.Result
	input  string
	found  map[int]tool.Outcome // what the searches for evidence came to, by step
	cited  map[int]bool         // the turns whose text cites
	frames []string
	ended  bool
	moved  bool // the last commit was a conflict
	seen   map[string]int
	nextID int
}

var agentA, agentB = id.AgentID{UUID: id.NewAnywhere()}, id.AgentID{UUID: id.NewAnywhere()}

func newLawWorld(d dice, bug mutant) *lawWorld {
	w := &lawWorld{dice: d, bug: bug, now: t0, doing: map[string]durable.Effect{}, sent: map[int][][]byte{}, plans: map[int]tool.Planned{},
		called: map[int]tool.Outcome{}, turns: map[int]*model.Result{}, seen: map[string]int{}}
	slots, ready := d.roll(0, 1, "slots") == 1, d.roll(0, 1, "accepted as ready") == 1
	cfg := Config{Store: w, Sealer: lawVault, Live: w, Tell: w, Now: func() time.Time { return w.now }, Log: zerolog.Nop(), EscalateFraction: .5, Tools: noTools{},
		Hears: func(id.TenantID) bool { return true }}
	if slots {
		cfg.Slots = w
	}
	w.k = &kind{cfg: cfg, agents: newAgents(&cfg)}
	w.mc = Machine{Slots: slots}
	w.input, w.found, w.cited = `{"text":"x"}`, map[int]tool.Outcome{}, map[int]bool{}
	if d.roll(0, 2, "evidence") == 0 {
		w.input = `{"text":"x","options":{"evidence":true}}`
	}
	limits := fmt.Sprintf(`"limits":{"max_steps":%d,"max_seconds":60,"max_tokens":%d}`, d.roll(1, 40, "max steps"), d.roll(300, 3000, "max tokens"))
	w.db = tables{approvals: map[id.ApprovalID]*approvalRow{}, timers: map[journal.TimerKey]time.Time{}, version: 1,
		run: engine.RunUpdate{ID: theRun, Status: lifecycle.RunQueued, State: Kept{Ready: ready}.Encode()}}
	w.agents = map[id.AgentID]string{
		agentA: `{"model":{"provider":"simulated","name":"a"},"handoffs":["b","a","gone"],"knowledge_bases":["` + agentA.String() + `"],` + limits + `}`,
		agentB: `{"model":{"provider":"simulated","name":"b"},"handoffs":["a"],` + limits + `}`,
	}
	return w
}

func (w *lawWorld) must(ok bool, law string, args ...any) {
	if !ok {
		panic(broken(fmt.Sprintf(law, args...)))
	}
}

// The interfaces Store, Live, Teller and Slots.

func (w *lawWorld) Run(context.Context, id.TenantID, id.RunID) (*engine.Run, error) {
	r := &w.db.run
	version, seq := 1, int64(5)
	out := &engine.Run{Status: r.Status, AgentID: &agentA, AgentVersion: &version, ThreadID: &thread, ThreadSeq: &seq, Input: json.RawMessage(w.input),
		Output: r.Output, ErrorCode: r.ErrorCode, ErrorMessage: r.ErrorMessage, OriginKind: lifecycle.OriginAPIKey, TokensIn: r.TokensIn, TokensOut: r.TokensOut,
		CostUSD: r.CostUSD, CreatedAt: t0, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, Seq: r.Seq, Steps: r.Steps, Version: w.db.version, Epoch: w.db.epoch, State: r.State}
	for _, s := range w.db.steps {
		if s.end != nil {
			continue
		}
		step := engine.OpenStep{Idx: s.Idx, Kind: s.Kind, Name: s.Name, Status: s.Status, BeganSeq: s.BeganSeq, Sealed: s.Sealed}
		for _, a := range w.db.approvals {
			if a.step == s.Idx && s.Status == lifecycle.StepWaiting {
				step.Asked = &engine.Asked{ID: a.id, Status: a.status, Decision: a.decision, Feedback: a.feedback, Digest: a.digest[:], OnTimeout: a.onTimeout,
					Assignee: a.assignee, ExpiresAt: a.expires}
				if a.status == lifecycle.ApprovalEdited {
					step.Asked.Edited, step.Asked.Shown = a.edited, json.RawMessage(`{"shown":true}`)
				}
			}
		}
		out.Open = append(out.Open, step)
	}
	return out, nil
}

func (w *lawWorld) Manifest(_ context.Context, _ id.TenantID, a id.AgentID, _ int) (json.RawMessage, error) {
	return json.RawMessage(w.agents[a]), nil
}

func (w *lawWorld) Messages(context.Context, id.TenantID, id.ThreadID, int64, int, int64) ([]engine.Message, int64, error) {
	return []engine.Message{{Seq: 5, Role: "user", Content: "x"}}, 1, nil
}

func (w *lawWorld) Sealed(_ context.Context, _ id.TenantID, _ id.RunID, from int, _ int64) (out []engine.Sealed, size int64, err error) {
	for _, s := range w.db.steps {
		if s.end != nil && s.Idx >= from && s.Sealed != nil && (s.end.Status == lifecycle.StepSucceeded || s.end.Status == lifecycle.StepFailed) {
			out, size = append(out, engine.Sealed{Idx: s.Idx, Value: s.Sealed}), size+int64(len(s.Sealed))
		}
	}
	return out, size, nil
}

func (w *lawWorld) Cited(context.Context, id.TenantID, id.RunID, []string) (map[string]knowledge.Citation, error) {
	return nil, nil
}

func (w *lawWorld) Published(_ context.Context, _ id.TenantID, slug string) (id.AgentID, int, bool, error) {
	switch slug {
	case "a":
		return agentA, 1, true, nil
	case "b":
		return agentB, 1, true, nil
	}
	return id.AgentID{}, 0, false, nil
}

func (w *lawWorld) Slug(_ context.Context, _ id.TenantID, a id.AgentID) (string, error) {
	return map[id.AgentID]string{agentA: "a", agentB: "b"}[a], nil
}

func (w *lawWorld) Begin(id.TenantID, id.RunID, int64, int, bool) model.Sink { return nil }
func (w *lawWorld) Tell(cluster.Address, any)                                {}
func (w *lawWorld) Acquire(id.TenantID, msg.AcquireSlot)                     {}
func (w *lawWorld) Release(id.TenantID, msg.ReleaseSlot)                     {}

// Abandon makes readers read the committed facts.
func (w *lawWorld) Abandon(id.TenantID, id.RunID) { w.frames = w.replayed() }

func (w *lawWorld) PublishFunc(_ id.TenantID, _ id.RunID, last int64, terminal bool, frames func() []*event.Frame) {
	for _, f := range frames() {
		w.frames = append(w.frames, string(f.Bytes()))
	}
	w.must(last == w.db.run.Seq && terminal == w.db.run.Status.Terminal(), "published %d, %t of a %s run at %d", last, terminal, w.db.run.Status, w.db.run.Seq)
	w.must(slices.Equal(w.frames, w.replayed()), "live frames\n%s\nreplayed\n%s", strings.Join(w.frames, ""), strings.Join(w.replayed(), ""))
}

// replayed returns the frames of all facts, without the text of models.
func (w *lawWorld) replayed() (out []string) {
	r := &w.db.run
	f := &event.Facts{Run: theRun, Agent: &agentA, Status: r.Status, Started: r.StartedAt != nil, Seq: r.Seq, Output: r.Output, TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: r.CostUSD}
	if r.ErrorCode != nil {
		f.ErrorCode, f.ErrorMessage = *r.ErrorCode, *r.ErrorMessage
	}
	for _, s := range w.db.steps {
		row := event.StepFacts{Idx: s.Idx, Kind: s.Kind, Name: s.Name, Status: s.Status, BeganSeq: s.BeganSeq, Input: s.Input}
		if s.CalledSeq != nil {
			row.CalledSeq = *s.CalledSeq
		}
		if s.end != nil {
			row.Status, row.Output = s.end.Status, s.end.Output
			if s.end.EndedSeq != nil {
				row.EndedSeq = *s.end.EndedSeq
			}
		}
		f.Steps = append(f.Steps, row)
	}
	for _, m := range w.db.marks {
		f.Marks = append(f.Marks, event.MarkFacts{Seq: m.Seq, Type: event.Type(m.Type), Data: m.Data})
	}
	for _, fr := range event.Replay(f, event.Cursor{Full: true, Since: -1}) {
		if fr.Type != event.LLMDelta && fr.Type != event.LLMThinking {
			out = append(out, string(fr.Bytes()))
		}
	}
	return out
}

type noTools struct{}

func (noTools) Offer(context.Context, tool.Caller) ([]model.ToolSpec, error) { return nil, nil }
func (noTools) Plan(context.Context, tool.Caller, int, []model.Call) ([]tool.Planned, error) {
	return nil, nil
}
func (noTools) Call(context.Context, tool.Caller, int, tool.Planned) tool.Outcome {
	return tool.Outcome{}
}
func (noTools) Preview(context.Context, tool.Caller, int, tool.Planned) *tool.Outcome { return nil }

// cancels returns the statement by which a commit cancels the pending approvals for the roles that
// were read; nil if it has none.
func cancels(c *journal.Commit) *journal.Statement {
	cancelling := engine.CancelApprovals(tenant, id.OpID{}, theRun, nil, t0).SQL
	for i := range c.Statements {
		if c.Statements[i].SQL == cancelling {
			return &c.Statements[i]
		}
	}
	return nil
}

// open returns the approvals that are pending after a commit's own decisions.
func (w *lawWorld) open(c *journal.Commit) (out []*approvalRow) {
	decided := journaltest.Row[*engine.ApprovalUpdate](c)
	for _, a := range w.db.approvals {
		if a.status == lifecycle.ApprovalPending && (decided == nil || decided.ID != a.id) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *approvalRow) int { return cmp.Compare(a.step, b.step) })
	return out
}

// holds reports whether the approvals are as the commit expects them.
func (w *lawWorld) holds(c *journal.Commit) bool {
	if u := journaltest.Row[*engine.ApprovalUpdate](c); u != nil && u.Version != w.db.approvals[u.ID].version {
		return false
	}
	st := cancels(c)
	if st == nil {
		return true
	}
	known, roles, open := st.Args[4].([]id.ApprovalID), st.Args[5].([]string), w.open(c)
	return len(known) == len(open) && !slices.ContainsFunc(open, func(a *approvalRow) bool {
		i := slices.Index(known, a.id)
		return i < 0 || roles[i] != string(a.assignee)
	})
}

// apply makes a commit durable if its swap succeeds.
func (w *lawWorld) apply(c *journal.Commit) bool {
	u := journaltest.Row[*engine.RunUpdate](c)
	if u == nil || u.Version != w.db.version || u.Epoch != w.db.epoch || !w.holds(c) {
		return false
	}
	was := w.db.run.Status
	if was.Terminal() {
		w.must(u.Status == was && u.Seq == w.db.run.Seq && u.Steps == w.db.run.Steps && len(c.Rows) == 1 && len(c.Timers)+len(c.Statements) == 0,
			"terminal is final: a %s run became %s", was, u.Status)
	}
	w.db.version, w.db.epoch, w.db.run = u.Version+1, u.SetEpoch, *u
	for _, s := range journaltest.Rows[*engine.StepInsert](c) {
		w.must(s.Idx == len(w.db.steps), "idx without gaps: step %d began after %d steps", s.Idx, len(w.db.steps))
		row := &stepRow{StepInsert: *s}
		row.Input = slices.Clone(s.Input)
		w.db.steps = append(w.db.steps, row)
	}
	for _, s := range journaltest.Rows[*engine.StepCall](c) {
		row := w.db.steps[s.Idx]
		w.must(row.end == nil && row.Status == lifecycle.StepWaiting, "step %d was called as %s", s.Idx, row.Status)
		seq := s.CalledSeq
		row.Status, row.CalledSeq = lifecycle.StepRunning, &seq
		if s.Input != nil {
			row.Input = s.Input
		}
		if s.Sealed != nil {
			row.Sealed = s.Sealed
		}
	}
	for _, e := range journaltest.Rows[*engine.StepUpdate](c) {
		row := w.db.steps[e.Idx]
		w.must(row.end == nil, "step %d ended twice", e.Idx)
		if e.Sealed != nil {
			row.Sealed = e.Sealed
		}
		row.end = e
	}
	for _, m := range journaltest.Rows[*engine.Mark](c) {
		w.db.marks = append(w.db.marks, *m)
	}
	w.db.replies += len(journaltest.Rows[*engine.MessageInsert](c))
	for _, x := range c.Usage {
		w.db.usageIn += x.TokensIn
	}
	for _, k := range c.TimersDone {
		delete(w.db.timers, k)
	}
	for _, t := range c.Timers {
		w.db.timers[t.TimerKey] = t.DueAt
	}
	var reports []string // the events that the commit must send
	if u := journaltest.Row[*engine.ApprovalUpdate](c); u != nil {
		a := w.db.approvals[u.ID]
		reports = append(reports, fmt.Sprint(webhook.ApprovalDecided, " ", u.ID, " ", u.Status, " ", a.assignee, " ", a.expires.UTC()))
		w.must(was == lifecycle.RunWaitingApproval && u.Run == theRun && a.status == lifecycle.ApprovalPending, "a %s approval of a %s run was decided", a.status, was)
		a.version++
		a.status, a.decision, a.feedback, a.digest = u.Status, u.Decision, *u.Feedback, u.Digest
		if u.Edited != nil {
			a.edited = u.Edited
		}
	}
	for _, n := range journaltest.Rows[*engine.ApprovalInsert](c) {
		a := &approvalRow{version: 1, id: n.ID, step: n.StepIdx, status: lifecycle.ApprovalPending, onTimeout: n.OnTimeout, assignee: n.Assignee, expires: n.ExpiresAt,
			digest: n.Digest}
		frozen, err := lawVault.Open(engine.FrozenAt(tenant, a.id), n.Frozen)
		w.must(err == nil && bytes.Equal(frozen, w.plans[a.step].Args) && tool.Digest(frozen) == a.digest, "the frozen arguments of step %d are %s (%v)", a.step, frozen, err)
		w.must(w.db.approvals[a.id] == nil, "an approval was opened twice")
		w.db.approvals[a.id] = a
		reports = append(reports, fmt.Sprint(webhook.ApprovalRequested, " ", a.id, " ", a.assignee, " ", a.expires.UTC()))
	}
	cancelling := cancels(c)
	for i, st := range c.Statements {
		switch {
		case &c.Statements[i] == cancelling:
			for _, a := range w.open(c) {
				a.version++
				a.status, a.decision = lifecycle.ApprovalCancelled, lifecycle.ActionCancel
				reports = append(reports, fmt.Sprint(webhook.ApprovalDecided, " ", a.id, " ", a.status, " ", a.assignee, " ", a.expires.UTC()))
			}
			w.seen["withdrawn"]++
		default:
			panic(st.SQL)
		}
	}
	switch {
	case was.Terminal() || !u.Status.Terminal():
	case u.Status == lifecycle.RunSucceeded:
		reports = append(reports, string(webhook.RunCompleted))
	default:
		reports = append(reports, fmt.Sprint(webhook.RunFailed, " ", *u.ErrorCode))
	}
	w.must(slices.Equal(slices.Sorted(slices.Values(reports)), slices.Sorted(slices.Values(reported(c.Events)))), "the commit makes true %q and reports %q", reports, reported(c.Events))
	w.invariants()
	return true
}

// reported returns the content of events.
func reported(events []journal.Event) (out []string) {
	for _, e := range events {
		var body struct {
			Type webhook.Type
			Data struct {
				Code string
				webhook.Decided
			}
		}
		if err := json.Unmarshal(e.Body, &body); err != nil || body.Type != e.Type {
			panic(broken(fmt.Sprintf("an event of type %s with the body %s: %v", e.Type, e.Body, err)))
		}
		d, what := &body.Data, string(e.Type)
		for _, part := range []string{d.Code, d.ApprovalID, d.Status, d.AssigneeRole} {
			if part != "" && !(d.ApprovalID == "" && part == d.Status) {
				what += " " + part
			}
		}
		if d.ApprovalID != "" {
			what += fmt.Sprint(" ", d.ExpiresAt.UTC())
		}
		out = append(out, what)
	}
	return out
}

// invariants are checked after every commit.
func (w *lawWorld) invariants() {
	r := &w.db.run
	w.must(r.Steps == len(w.db.steps), "the row says %d steps, there are %d", r.Steps, len(w.db.steps))
	var seqs []int64
	if r.StartedAt != nil {
		seqs = append(seqs, event.SeqStarted)
	}
	running, waiting := 0, 0
	var in int64
	for _, s := range w.db.steps {
		seqs = append(seqs, s.BeganSeq)
		if s.CalledSeq != nil && s.Kind != lifecycle.StepHandoff {
			seqs = append(seqs, *s.CalledSeq)
		}
		switch {
		case s.end == nil && s.Status == lifecycle.StepRunning:
			running++
		case s.end == nil:
			waiting++
		default:
			in += s.end.TokensIn
			if s.end.EndedSeq != nil {
				for n := range event.CountRetrieved(s.end.Output) {
					w.must(s.Kind == lifecycle.StepRetrieval, "a %s step retrieved", s.Kind)
					seqs = append(seqs, *s.end.EndedSeq-int64(n)-1)
				}
				seqs = append(seqs, *s.end.EndedSeq)
			}
		}
	}
	handoffs := 0
	for _, m := range w.db.marks {
		seqs = append(seqs, m.Seq)
		if m.Type == string(event.Handoff) {
			handoffs++
		}
	}
	if r.Status.Terminal() {
		seqs = append(seqs, r.Seq)
	}
	slices.Sort(seqs)
	for i, n := range seqs {
		w.must(n == int64(i+1), "seq without gaps: %v", seqs)
	}
	w.must(int64(len(seqs)) == r.Seq, "the row says seq %d, there are %d", r.Seq, len(seqs))
	pending := 0
	for _, a := range w.db.approvals {
		if a.status == lifecycle.ApprovalPending {
			pending++
		}
	}
	switch r.Status {
	case lifecycle.RunQueued:
		w.must(len(w.db.steps) == 0, "a queued run has steps")
	case lifecycle.RunRunning:
		w.must(running > 0 && pending == 0, "a running run has %d running steps, %d pending approvals", running, pending)
	case lifecycle.RunWaitingApproval:
		w.must(waiting > 0 && waiting == w.asked(), "a waiting run has %d waiting steps, %d approvals about them", waiting, w.asked())
	default:
		w.must(running+waiting+pending == 0, "every open thing ends with the run: %d running, %d waiting, %d pending", running, waiting, pending)
		for k := range w.db.timers {
			w.must(k.Kind == msg.KindRun, "a %s run leaves the timer %v", r.Status, k)
		}
	}
	w.must(handoffs <= maxHandoffs, "%d handoffs", handoffs)
	w.must(r.Steps <= w.limits().MaxSteps, "%d steps", r.Steps)
	w.must(r.TokensIn == in && r.TokensIn == w.db.usageIn, "the row says %d tokens, the steps %d, the bill %d", r.TokensIn, in, w.db.usageIn)
	w.must(len(r.State) <= 2048, "state takes %d bytes", len(r.State))
	w.must((w.db.replies == 1) == (r.Status == lifecycle.RunSucceeded), "%d replies of a %s run", w.db.replies, r.Status)
	w.ended = r.Status.Terminal()
}

// asked returns the number of approvals of waiting steps.
func (w *lawWorld) asked() (n int) {
	for _, a := range w.db.approvals {
		if s := w.db.steps[a.step]; s.end == nil && s.Status == lifecycle.StepWaiting {
			n++
		}
	}
	return n
}

func (w *lawWorld) limits() agent.Limits {
	ag, err := w.k.agents.ready(context.Background(), version{tenant, agentA, 1})
	if err != nil {
		panic(err)
	}
	return ag.Manifest.Limits
}

// The host.

func (w *lawWorld) crash() {
	w.mem, w.doing = nil, map[string]durable.Effect{}
	w.seen["crash"]++
}

// receive delivers one message, after loading if necessary.
func (w *lawWorld) receive(m any) {
	if w.mem == nil {
		l, err := w.k.load(context.Background(), lawAddress)
		if err != nil {
			panic(broken("load: " + err.Error()))
		}
		if w.bug.loaded != nil {
			w.bug.loaded(&l.State)
		}
		l.Guard.SetEpoch = l.Guard.Epoch + 1
		w.mem = &l
		if !w.turn(durable.Activated{Epoch: l.Guard.SetEpoch}) {
			w.again(m)
			return
		}
		w.act()
	}
	if !w.turn(m) {
		w.again(m)
		return
	}
	w.act()
	if s := w.mem.State.Status; s.Terminal() || s == lifecycle.RunWaitingApproval {
		w.must(len(w.doing) == 0, "a %s run still does %v", s, slices.Sorted(maps.Keys(w.doing)))
		w.mem = nil
	}
}

// again repeats a message whose commit was a conflict.
func (w *lawWorld) again(m any) {
	if !w.moved {
		return
	}
	w.moved = false
	w.seen["decided again"]++
	w.receive(m)
}

// meanwhile casts a vote on an approval that a commit is about to cancel, or escalates it. It reports
// whether the commit misses for that.
func (w *lawWorld) meanwhile(c *journal.Commit) bool {
	if st := cancels(c); st == nil || w.seen["escalated"] == 5 || w.roll(0, 2, "meanwhile") > 0 {
		return false
	}
	open := w.open(c)
	if len(open) == 0 {
		return false
	}
	a := open[w.roll(0, len(open)-1, "on")]
	a.version++
	if a.assignee == lifecycle.RoleOwner || w.roll(0, 1, "escalates") == 0 {
		w.seen["voted"]++
		return false
	}
	a.assignee = lifecycle.RoleOwner
	w.seen["escalated"]++
	return true
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

func (w *lawWorld) decide(m any) decision {
	s := w.mem.State
	was := s
	was.Calls = nil
	for _, c := range s.Calls {
		k := *c
		was.Calls = append(was.Calls, &k)
	}
	was.Open, was.Final, was.Error = copied(s.Open), copied(s.Final), copied(s.Error)
	said := s.Said[:cap(s.Said)] // with what an append would write behind its end
	were := slices.Clone(said)
	d, err := w.mc.Decide(s, m, w.now)
	w.must(err == nil, "%T: %v", m, err)
	w.must(reflect.DeepEqual(was, s) && reflect.DeepEqual(were, said), "%T mutated the state", m)
	if w.bug.decided != nil {
		w.bug.decided(s, m, &d)
	}
	return d
}

// turn decides, commits and publishes. It returns false if the host died on the way, or if a conflict
// ended the activation.
func (w *lawWorld) turn(m any) bool {
	w.moved = false
	d := w.decide(m)
	if !d.Changed {
		return true
	}
	if _, refused := m.(durable.Refused); !refused && w.roll(0, 40, "refused") == 0 {
		if _, cancel := m.(msg.CancelRun); !cancel {
			w.seen["refused"]++
			m = durable.Refused{Msg: m}
			if d = w.decide(m); !d.Changed {
				w.crash()
				return false
			}
		}
	}
	c := w.k.rows(lawAddress, *w.mem, d, m, id.OpID{UUID: id.NewAnywhere()}, w.now)
	if w.bug.rows != nil {
		w.bug.rows(c)
	}
	if w.bug.early {
		for _, e := range w.mc.Owed(d.Next) {
			if call, ok := e.(ToolCall); ok && w.doing[e.Key()] == nil {
				w.send(call)
			}
		}
	}
	if w.roll(0, 12, "dies before the commit") == 0 {
		w.crash()
		return false
	}
	w.moved = w.meanwhile(c)
	if durable := w.apply(c); !durable || w.moved {
		w.must(!durable, "a commit cancels what somebody voted on meanwhile")
		w.must(w.moved, "the only activation lost its swap")
		w.crash()
		return false
	}
	if w.roll(0, 12, "dies after the commit") == 0 {
		w.crash()
		return false
	}
	prev := w.mem.State
	g := &w.mem.Guard
	w.mem.State, g.Version, g.Epoch = d.Next, g.Version+1, g.SetEpoch
	w.k.after(lawAddress, prev, d.Next, d)
	return true
}

// act starts the newly owed effects and cancels those no longer owed.
func (w *lawWorld) act() {
	owed := w.mc.Owed(w.mem.State)
	if w.bug.owed != nil {
		owed = w.bug.owed(w.mem.State, owed)
	}
	keep := map[string]bool{}
	last := -1
	for _, e := range owed {
		key := e.Key()
		w.must(!keep[key], "%s is owed twice at once", key)
		keep[key] = true
		if w.doing[key] != nil {
			continue
		}
		w.doing[key] = e
		switch e := e.(type) {
		case ToolCall:
			w.must(e.Call.Idx > last, "calls start in call order")
			last = e.Call.Idx
			w.send(e)
		case ModelCall:
			w.hears(e)
		case Retrieve:
			w.must(e.Idx < len(w.db.steps) && w.db.steps[e.Idx].end == nil && w.db.steps[e.Idx].Kind == lifecycle.StepRetrieval && len(w.turns) == 0,
				"the search of step %d is not owed", e.Idx)
		}
	}
	maps.DeleteFunc(w.doing, func(key string, _ durable.Effect) bool { return !keep[key] })
}

// send is a call that reaches its tool.
func (w *lawWorld) send(e ToolCall) {
	idx := e.Call.Idx
	w.must(idx < len(w.db.steps), "step %d is called and not committed", idx)
	row, plan := w.db.steps[idx], w.plans[idx]
	w.must(w.db.run.Status == lifecycle.RunRunning && row.end == nil && row.Status == lifecycle.StepRunning && row.CalledSeq != nil,
		"step %d is called without a receipt", idx)
	want, digest := []byte(plan.Args), tool.Digest(plan.Args)
	for _, a := range w.db.approvals {
		w.must(a.status.Terminal(), "step %d is called before the last approval of its turn is decided", idx)
		if a.step == idx {
			w.must(a.status == lifecycle.ApprovalApproved || a.status == lifecycle.ApprovalEdited, "step %d is called although it is %s", idx, a.status)
			digest = a.digest
			if a.status == lifecycle.ApprovalEdited {
				want = editedArgs(idx)
			}
			w.seen["called after "+string(a.status)]++
		}
	}
	w.must((plan.Terms != nil) == (w.approvalOf(idx) != nil), "step %d is called without being asked for", idx)
	w.must(bytes.Equal(e.Call.Plan.Args, want) && tool.Digest(e.Call.Plan.Args) == digest, "step %d is called with %s, not with %s", idx, e.Call.Plan.Args, want)
	if n := len(w.sent[idx]); n > 0 {
		w.must(plan.Repeat, "step %d is called twice and cannot be repeated", idx)
		w.must(bytes.Equal(w.sent[idx][n-1], e.Call.Plan.Args), "step %d is repeated with other bytes", idx)
		w.seen["repeated"]++
	}
	w.sent[idx] = append(w.sent[idx], slices.Clone(e.Call.Plan.Args))
}

func (w *lawWorld) approvalOf(idx int) *approvalRow {
	for _, a := range w.db.approvals {
		if a.step == idx {
			return a
		}
	}
	return nil
}

func editedArgs(idx int) []byte {
	return []byte(fmt.Sprintf("{ \"edited\": \"<%d>\" ,\"password\":\"p\"}", idx))
}

// hears checks a request to the model: it has every turn of the run with its results in call order,
// followed by what people said.
func (w *lawWorld) hears(e ModelCall) {
	req, err := w.k.request(context.Background(), e.Of, &place{})
	w.must(err == nil, "the model could not be asked: %v", err)
	speaker := agentA
	for _, m := range w.db.marks {
		if m.Type == string(event.Handoff) {
			speaker = agentB
			if bytes.Contains(m.Data, []byte(`"to":"a"`)) {
				speaker = agentA
			}
		}
	}
	w.must(e.Idx < len(w.db.steps), "the model is asked for step %d, which is not committed", e.Idx)
	row := w.db.steps[e.Idx]
	w.must(*row.AgentID == speaker && row.Name == req.Model && req.Model == map[id.AgentID]string{agentA: "a", agentB: "b"}[speaker], "step %d is spoken by %s, asked of %s", e.Idx, row.Name, req.Model)
	want := []model.Message{{Role: model.User, Text: "x"}}
	for _, idx := range slices.Sorted(maps.Keys(w.found)) {
		if end := w.db.steps[idx].end; end != nil && end.Status == lifecycle.StepSucceeded {
			want = append(want, model.Message{Role: model.User, Text: evidenceNote + w.found[idx].Content, Aside: true})
		}
	}
	w.must((len(want) > 1) == demandsEvidence(json.RawMessage(w.input)), "the model hears %d messages before its first turn", len(want))
	for _, llm := range slices.Sorted(maps.Keys(w.turns)) {
		r := w.turns[llm]
		if end := w.db.steps[llm].end; len(r.Calls) == 0 && end != nil && end.Status == lifecycle.StepSucceeded {
			w.must(!w.cited[llm] && demandsEvidence(json.RawMessage(w.input)), "the model is asked after its answer")
			w.seen["asked again"]++
			want = append(want, r.Message(), model.Message{Role: model.User, Text: askedAgain, Aside: true})
		}
		if end := w.db.steps[llm].end; len(r.Calls) == 0 || end == nil || end.Status != lifecycle.StepSucceeded {
			continue // the answer was lost
		}
		var results []model.CallResult
		var people []string
		for i := range r.Calls {
			idx := llm + 1 + i
			out := w.outcome(idx)
			results = append(results, model.CallResult{CallID: r.Calls[i].ID, Content: out.Content, IsError: out.IsError})
			if a := w.approvalOf(idx); a != nil && a.status == lifecycle.ApprovalResponded {
				people = append(people, a.feedback)
			}
		}
		want = append(want, r.Message(), model.Message{Role: model.Tool, Results: results})
		if len(people) > 0 {
			want = append(want, model.Message{Role: model.User, Text: strings.Join(people, "\n\n")})
		}
	}
	have, err1 := json.Marshal(req.Messages)
	expected, err2 := json.Marshal(want)
	w.must(err1 == nil && err2 == nil && bytes.Equal(have, expected), "the model hears\n%s\nnot\n%s", have, expected)
}

// outcome returns the outcome of a call, as far as the world knows it better than the run.
func (w *lawWorld) outcome(idx int) tool.Outcome {
	row := w.db.steps[idx]
	w.must(row.end != nil, "step %d is heard and open", idx)
	plan := w.plans[idx]
	if out, ok := w.called[idx]; ok && (plan.Terms == nil || w.allowed(idx)) {
		return out
	}
	shown := tool.Outcome{Content: string(row.end.Output), IsError: row.end.Status == lifecycle.StepFailed}
	want := ""
	a := w.approvalOf(idx)
	switch {
	case plan.Refused != nil:
		want = plan.Refused.Content
	case a != nil && a.status == lifecycle.ApprovalRejected:
		want = `{"rejected":true,"feedback":"` + a.feedback + `"}`
	case a != nil && a.status == lifecycle.ApprovalExpired:
		want = `{"rejected":true,"feedback":"expired"}`
	case a != nil && a.status == lifecycle.ApprovalResponded:
		want = `{"responded":true}`
		w.must(!shown.IsError, "a response is no failure")
	case plan.Handoff: // the run itself answers a handoff
		return shown
	default:
		want = tool.UnknownOutcome.Content
		w.must(!plan.Repeat, "step %d can be repeated and was given up", idx)
		w.must(len(w.sent[idx]) <= 1, "step %d was called %d times", idx, len(w.sent[idx]))
		w.seen["unknown outcome"]++
	}
	w.must(shown.Content == want, "step %d came to %s, not %s", idx, shown.Content, want)
	return shown
}

func (w *lawWorld) allowed(idx int) bool {
	a := w.approvalOf(idx)
	return a != nil && (a.status == lifecycle.ApprovalApproved || a.status == lifecycle.ApprovalEdited)
}

// What may happen next.

// says returns a turn of the model that is an answer, which may cite.
func (w *lawWorld) says(e ModelCall, text string) ModelAnswered {
	a := at(answer(text), e.Idx)
	if w.cited[e.Idx] = w.roll(0, 1, "cites") == 1; w.cited[e.Idx] {
		a.Verdict.Citations = []knowledge.Citation{{Cite: "kb:x#1"}}
	}
	w.turns[e.Idx] = a.Result
	return a
}

// retrieval returns what a search comes to.
func (w *lawWorld) retrieval(idx int) tool.Outcome {
	shown := fmt.Sprintf(`{"results":[%s],"n":%d}`, strings.TrimSuffix(strings.Repeat(`{"kb":"b","chunks":[]},`, w.roll(0, 2, "bases")), ","), idx)
	return tool.Outcome{Content: fmt.Sprint("found ", idx), Shown: json.RawMessage(shown)}
}

// answers returns a turn of the model.
func (w *lawWorld) answers(e ModelCall) ModelAnswered {
	a := answer("hm")
	a.Idx = e.Idx
	if w.roll(0, 5, "says it") == 0 {
		return w.says(e, "hm")
	}
	handoffs := 0
	for i := range w.roll(1, 4, "calls") {
		w.nextID++
		c := model.Call{ID: fmt.Sprint("c", w.nextID), Name: "t", Args: json.RawMessage(fmt.Sprintf(`{"n":%d}`, w.nextID))}
		p := tool.Planned{CallID: c.ID, Tool: "crm.t", Args: json.RawMessage(fmt.Sprintf("{ \"n\": %d, \"q\": \"<a&b>\" }", w.nextID)), Shown: json.RawMessage(fmt.Sprintf("{ \"n\": %d }", w.nextID))}
		kind := w.roll(0, 11, "kind of call")
		if kind < 7 {
			p.Repeat = w.roll(0, 1, "repeat") == 1
		}
		switch kind {
		case 1, 2, 5:
			p.Retrieval, p.Repeat, p.Tool = true, true, tool.KBSearch
		case 0:
			out := tool.FailedResult(tool.ErrInvalidArgs, "no")
			p.Refused = &out
		case 10, 11:
			p.Handoff, p.Tool = true, "builtin:handoff"
			p.Args = json.RawMessage(`{"to":"` + []string{"a", "b", "gone", "x"}[w.roll(0, 3, "to")] + `"}`)
		}
		if kind >= 4 && kind != 11 && p.Refused == nil {
			p.Terms = &tool.Terms{Risk: lifecycle.RiskMedium, Required: 1, Role: lifecycle.RoleAdmin, SLAMinutes: 1, OnTimeout: agent.TimeoutReject}
			if w.roll(0, 5, "on timeout") == 0 {
				p.Terms.OnTimeout = agent.TimeoutCancelRun
			}
			p.Approval = &id.ApprovalID{UUID: id.New(theRun.Shard())}
		}
		a.Result.Calls = append(a.Result.Calls, c)
		a.Plan = append(a.Plan, p)
		if p.Handoff && p.Refused == nil {
			if handoffs++; handoffs > 1 {
				p.Refused = &secondHandoff
			}
		}
		w.plans[e.Idx+1+i] = p
	}
	w.turns[e.Idx] = a.Result
	return a
}

// decides decides an approval in a commit of its own, for a person or the timer. Unless the process dies
// first the run is told; its timer is set in any case.
func (w *lawWorld) decides(a *approvalRow, action lifecycle.Action) {
	next := *a
	next.decision = action
	next.version++
	switch action {
	case lifecycle.ActionApprove:
		next.status = lifecycle.ApprovalApproved
	case lifecycle.ActionEdit:
		next.status = lifecycle.ApprovalEdited
		sealed, err := lawVault.Seal(engine.EditedAt(tenant, a.id), editedArgs(a.step))
		if err != nil {
			panic(err)
		}
		next.edited, next.digest = sealed, tool.Digest(editedArgs(a.step))
	case lifecycle.ActionReject:
		next.status, next.feedback = lifecycle.ApprovalRejected, "no"
	case lifecycle.ActionRespond:
		next.status, next.feedback = lifecycle.ApprovalResponded, fmt.Sprint("rather ", a.step)
	case lifecycle.ActionExpire:
		next.status = lifecycle.ApprovalExpired
	}
	if w.plans[a.step].Handoff && next.status == lifecycle.ApprovalEdited { // a handoff cannot be edited into another call
		next.status, next.decision, next.digest = lifecycle.ApprovalApproved, lifecycle.ActionApprove, tool.Digest(w.plans[a.step].Args)
	}
	*a = next
	w.seen[string(a.status)]++
	delete(w.db.timers, engine.ApprovalTimer(a.id, msg.TimerExpire))
	delete(w.db.timers, engine.ApprovalTimer(a.id, msg.TimerEscalate))
	w.db.timers[engine.WakeTimer(theRun, a.id)] = w.now.Add(time.Second)
	if w.roll(0, 2, "told") > 0 {
		w.receive(msg.ApprovalsDecided{})
	}
}

func (w *lawWorld) pending() []*approvalRow {
	var out []*approvalRow
	if w.db.run.Status == lifecycle.RunWaitingApproval {
		for _, a := range w.db.approvals {
			if a.status == lifecycle.ApprovalPending {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, func(a, b *approvalRow) int { return cmp.Compare(a.step, b.step) })
	return out
}

// due fires the run's timers, oldest step first.
func (w *lawWorld) due() bool {
	var names []string
	for k, at := range w.db.timers {
		if k.Kind == msg.KindRun && !at.After(w.now) {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		w.receive(durable.TimerDue{Name: n})
	}
	return len(names) > 0
}

// effect returns an effect in flight, nil if there is none.
func (w *lawWorld) effect() durable.Effect {
	keys := slices.Sorted(maps.Keys(w.doing))
	if len(keys) == 0 {
		return nil
	}
	return w.doing[keys[w.roll(0, len(keys)-1, "which")]]
}

// done returns the outcome of an effect; if kindly is set, nothing fails.
func (w *lawWorld) done(e durable.Effect, kindly bool) {
	switch e := e.(type) {
	case AcquireSlot:
		w.receive(msg.SlotGranted{})
	case ModelCall:
		switch n := w.roll(0, 12, "model"); {
		case kindly && w.db.run.Steps > 6:
			w.receive(w.says(e, "done"))
		case n == 0 && !kindly:
			w.receive(ModelFailed{Idx: e.Idx, Code: lifecycle.FailModelError, Broken: w.roll(0, 1, "broken") == 1, TokensIn: 1})
		case n == 1 && !kindly:
			w.receive(TimeUp{Idx: e.Idx})
		default:
			w.receive(w.answers(e))
		}
	case ToolCall:
		out := outcome(map[string]int{"answer": e.Call.Idx})
		if e.Call.Plan.Retrieval {
			out = w.retrieval(e.Call.Idx)
			w.seen["kb.search"]++
		}
		out.IsError = w.roll(0, 3, "tool fails") == 0
		switch n := w.roll(0, 14, "tool"); {
		case n == 0 && !kindly:
			w.receive(TimeUp{Idx: e.Call.Idx})
		case n == 1 && !kindly:
			if !e.Call.Plan.Repeat { // a call that can be repeated needs an answer
				w.receive(durable.EffectFailed{Key: e.Key()})
			}
		default:
			w.hear(e.Call.Idx, out)
		}
	case Retrieve:
		m := Retrieved{Idx: e.Idx, Retrieval: tool.Retrieval{Outcome: w.retrieval(e.Idx), Bases: w.roll(0, 9, "bases there"), Hits: w.roll(0, 3, "hits")}}
		switch n := w.roll(0, 20, "search"); {
		case n == 0 && !kindly:
			w.receive(TimeUp{Idx: e.Idx})
		case n == 1 && !kindly:
			w.receive(durable.EffectFailed{Key: e.Key()})
		case n == 2 && !kindly:
			w.receive(Retrieved{Idx: e.Idx, Failed: true})
		default:
			w.found[e.Idx] = m.Outcome
			w.seen["evidence"]++
			w.receive(m)
		}
	case HandOff:
		w.receive(w.k.handOff(context.Background(), time.Minute, e))
	}
}

var people = []lifecycle.Action{lifecycle.ActionApprove, lifecycle.ActionApprove, lifecycle.ActionEdit, lifecycle.ActionReject, lifecycle.ActionRespond, lifecycle.ActionExpire}

// history is one random life of a run, to its end.
func (w *lawWorld) history() {
	w.receive(msg.Proceed{})
	for range w.roll(1, 60, "length") {
		w.now = w.now.Add(time.Duration(w.roll(0, 1500, "ms")) * time.Millisecond)
		switch n := w.roll(0, 30, "event"); {
		case n == 0 && w.roll(0, 3, "really") == 0:
			w.receive(msg.CancelRun{})
		case n == 1:
			w.crash()
		case n == 2:
			w.receive(msg.Proceed{})
		case n == 3:
			w.receive(durable.Wake{})
		case n == 4 && w.mem != nil:
			w.hear(w.roll(0, 9, "stranger"), outcome("x")) // the step may be open, and then the answer counts
		case n <= 7:
			w.due()
		case n <= 14:
			if p := w.pending(); len(p) > 0 {
				w.decides(p[w.roll(0, len(p)-1, "approval")], people[w.roll(0, len(people)-1, "action")])
			}
		default:
			if e := w.effect(); e != nil {
				w.done(e, false)
			}
		}
	}
	w.seen["length "+string(w.db.run.Status)]++
	// From here on people decide and tools answer, so every run must end.
	for n := 0; !w.ended || len(w.db.timers) > 0; n++ {
		w.must(n < 500, "a %s run comes to no end: %v", w.db.run.Status, w.db.timers)
		w.now = w.now.Add(300 * time.Millisecond)
		if p := w.pending(); len(p) > 0 {
			w.decides(p[0], lifecycle.ActionApprove)
		} else if w.due() {
			continue
		} else if e := w.effect(); e != nil {
			w.done(e, true)
		} else if w.db.run.Status == lifecycle.RunQueued {
			w.receive(msg.Proceed{})
		} else {
			w.receive(durable.Wake{}) // the sweep
		}
	}
	w.seen[string(w.db.run.Status)]++
	if w.db.run.ErrorCode != nil {
		w.seen[*w.db.run.ErrorCode]++
	}
	for _, m := range w.db.marks {
		w.seen[m.Type]++
	}
}

// hear delivers an answer for a step, which may be ignored.
func (w *lawWorld) hear(idx int, out tool.Outcome) {
	was, known := w.called[idx]
	if w.mem != nil && w.mem.State.calls(idx) >= 0 && w.mem.State.Calls[w.mem.State.calls(idx)].Kind != lifecycle.StepHandoff {
		w.called[idx] = out
	}
	w.receive(ToolAnswered{Idx: idx, Outcome: out})
	if idx >= len(w.db.steps) || w.db.steps[idx].end == nil || !bytes.Equal(w.db.steps[idx].end.Output, out.Shown) {
		if delete(w.called, idx); known {
			w.called[idx] = was
		}
	}
}

// live runs one history and returns the law that was violated, "" if none was.
func live(d dice, bug mutant, seen map[string]int) (law string) {
	w := newLawWorld(d, bug)
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(broken)
			if !ok {
				panic(r)
			}
			law = string(b)
		}
		for k, n := range w.seen {
			seen[k] += n
		}
	}()
	w.history()
	return ""
}

// TestLaws checks the laws: there is at most one begun call for each approval, and none before the last
// approval of the turn is decided. Over any crash a call that cannot be repeated is sent once, and one
// that can is sent with the same bytes. idx and seq have no gaps. A terminal status is final, and every
// open step and approval ends with its run. Live frames equal the replayed ones. The model gets all
// results in call order. Approvals are cancelled for the roles that were read. The run's end and each
// opening and end of an approval are reported once. Every run ends once people decide and tools answer.
func TestLaws(t *testing.T) {
	seen := map[string]int{}
	for range 10 { // enough for each kind of history to occur
		rapid.Check(t, func(rt *rapid.T) {
			if law := live(rapidDice{rt}, mutant{}, seen); law != "" {
				rt.Fatal(law)
			}
		})
	}
	for seed := range uint64(1500) {
		if law := live(randDice{rand.New(rand.NewPCG(seed, 1))}, mutant{}, seen); law != "" {
			t.Fatalf("seed %d: %s", seed, law)
		}
	}
	for _, want := range []string{"succeeded", "failed", "cancelled", "crash", "refused", "approved", "edited", "rejected", "responded", "expired",
		"CANCELLED", "EXPIRED", "LIMIT_EXCEEDED", "MODEL_ERROR", "INTERNAL", "approval.required", "run.waiting", "run.resumed", "handoff",
		"repeated", "kb.search", "evidence", "asked again", "OUTPUT_INVALID", "withdrawn", "voted", "escalated", "decided again", "unknown outcome", "called after approved", "called after edited", "length waiting_approval", "length running"} {
		if seen[want] == 0 {
			t.Errorf("no history had %q: the test proves nothing (%v)", want, seen)
		}
	}
}

// mutants are defects that the laws must find.
var mutants = []mutant{
	{name: "calls before the commit", early: true},
	{name: "drops the receipt of an ungated call", rows: func(c *journal.Commit) {
		for _, s := range journaltest.Rows[*engine.StepInsert](c) {
			s.CalledSeq = nil
		}
	}},
	{name: "drops the receipt of a gated call", rows: journaltest.Drop[*engine.StepCall]},
	{name: "does not ask", rows: func(c *journal.Commit) {
		journaltest.Drop[*engine.ApprovalInsert](c)
		c.Statements = nil
	}},
	{name: "ignores edited arguments", loaded: func(s *State) {
		approvals(s, func(c *Call, a *Approval) {
			if a.Status == lifecycle.ApprovalEdited {
				a.Edited, a.Digest = c.Plan.Args, tool.Digest(c.Plan.Args)
			}
		})
	}},
	{name: "writes edited arguments anew", loaded: func(s *State) {
		approvals(s, func(_ *Call, a *Approval) {
			if a.Status == lifecycle.ApprovalEdited {
				a.Edited = compacted(a.Edited)
				a.Digest = tool.Digest(a.Edited)
			}
		})
	}},
	{name: "writes arguments anew", loaded: func(s *State) {
		for _, c := range s.Calls {
			c.Plan.Args = compacted(c.Plan.Args)
			if c.Approval != nil && c.Approval.Status == lifecycle.ApprovalApproved {
				c.Approval.Digest = tool.Digest(c.Plan.Args)
			}
		}
	}},
	{name: "takes a rejection for an approval", loaded: func(s *State) {
		approvals(s, func(_ *Call, a *Approval) {
			if a.Status == lifecycle.ApprovalRejected {
				a.Status = lifecycle.ApprovalApproved
			}
		})
	}},
	{name: "goes on at the first decision", loaded: func(s *State) {
		decided := slices.ContainsFunc(s.Calls, func(c *Call) bool { return c.Approval != nil && c.Approval.Status.Terminal() })
		approvals(s, func(_ *Call, a *Approval) {
			if decided && !a.Status.Terminal() {
				a.Status, a.Decision = lifecycle.ApprovalApproved, lifecycle.ActionApprove
			}
		})
	}},
	{name: "owes a call that waits", owed: func(s State, owed []durable.Effect) []durable.Effect {
		for _, c := range s.Calls {
			if c.Status == lifecycle.StepWaiting {
				owed = append(owed, ToolCall{Call: c, Of: &s})
			}
		}
		return owed
	}},
	{name: "sends again what cannot be repeated", loaded: func(s *State) {
		for _, c := range s.Calls {
			c.Plan.Repeat = true
		}
	}},
	{name: "gives up what can be repeated", loaded: func(s *State) {
		for _, c := range s.Calls {
			c.Plan.Repeat = false
		}
	}},
	{name: "starts calls in another order", owed: func(_ State, owed []durable.Effect) []durable.Effect {
		slices.Reverse(owed)
		return owed
	}},
	{name: "leaves calls open at its end", decided: func(_ State, _ any, d *decision) {
		if d.Next.Status.Terminal() {
			d.Facts = slices.DeleteFunc(d.Facts, func(f any) bool { e, ok := f.(StepEnded); return ok && e.Kind == lifecycle.StepTool && e.Seq == 0 })
		}
	}},
	{name: "leaves approvals pending at its end", decided: func(_ State, _ any, d *decision) {
		d.Facts = slices.DeleteFunc(d.Facts, func(f any) bool { _, ok := f.(Withdrawn); return ok })
	}},
	{name: "does not read the roles of its approvals", loaded: func(s *State) {
		approvals(s, func(_ *Call, a *Approval) { a.Assignee = "" })
	}},
	{name: "cancels approvals for roles that it did not read", rows: func(c *journal.Commit) {
		if st := cancels(c); st != nil {
			for i := range st.Args[5].([]string) {
				st.Args[5].([]string)[i] = string(lifecycle.RoleMember)
			}
		}
	}},
	{name: "cancels an approval that is not pending", rows: func(c *journal.Commit) {
		if st := cancels(c); st != nil {
			st.Args[4] = append(st.Args[4].([]id.ApprovalID), id.ApprovalID{UUID: id.NewAnywhere()})
			st.Args[5] = append(st.Args[5].([]string), string(lifecycle.RoleAdmin))
		}
	}},
	{name: "leaves the timers of its approvals", rows: func(c *journal.Commit) { c.TimersDone = nil }},
	{name: "goes on after its end", decided: func(s State, m any, d *decision) {
		if _, woken := m.(durable.Wake); woken && s.Status.Terminal() {
			d.Changed, d.Next.Status = true, lifecycle.RunRunning
		}
	}},
	{name: "skips a number", decided: func(_ State, m any, d *decision) {
		if _, ok := m.(ToolAnswered); ok && d.Changed {
			d.Next.Seq++
		}
	}},
	{name: "forgets what was retrieved", loaded: func(s *State) { s.Retrieved = false }},
	{name: "does not say what was wrong with an answer", decided: func(_ State, m any, d *decision) {
		if a, ok := m.(ModelAnswered); ok && d.Next.AskedAgain && len(a.Result.Calls) == 0 && d.Next.Open != nil {
			d.Next.Said = d.Next.Said[:max(0, len(d.Next.Said)-1)]
		}
	}},
	{name: "forgets a mark", rows: journaltest.Drop[*engine.Mark]},
	{name: "shows nothing of what resumed it", decided: func(_ State, _ any, d *decision) {
		d.Facts = slices.DeleteFunc(d.Facts, func(f any) bool { _, ok := f.(Resumed); return ok })
	}},
	{name: "keeps a result to itself", decided: func(_ State, _ any, d *decision) {
		if n := len(d.Next.Said); n > 0 && len(d.Next.Said[n-1].Results) > 0 {
			last := d.Next.Said[n-1]
			last.Results = last.Results[:len(last.Results)-1]
			d.Next.Said = append(slices.Clone(d.Next.Said[:n-1]), last)
		}
	}},
	{name: "keeps what people say to itself", loaded: func(s *State) {
		approvals(s, func(_ *Call, a *Approval) { a.Feedback = "" })
	}},
	{name: "forgets who speaks", loaded: func(s *State) { s.Handoffs = 0 }},
	{name: "reports nothing", rows: func(c *journal.Commit) { c.Events = nil }},
	{name: "reports twice", rows: func(c *journal.Commit) { c.Events = append(c.Events, c.Events...) }},
	{name: "bills nothing", rows: func(c *journal.Commit) { c.Usage = nil }},
}

func approvals(s *State, f func(*Call, *Approval)) {
	for _, c := range s.Calls {
		if c.Approval != nil {
			f(c, c.Approval)
		}
	}
}

func compacted(doc json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, doc) != nil {
		return doc
	}
	return b.Bytes()
}

// Each planted defect must be found: laws that find nothing prove nothing.
func TestLawsFindPlantedDefects(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			for seed := range uint64(5000) {
				if law := live(randDice{rand.New(rand.NewPCG(seed, 2))}, m, map[string]int{}); law != "" {
					law, _, _ = strings.Cut(law, "\n")
					t.Logf("after %d histories: %s", seed+1, law)
					return
				}
			}
			t.Error("not found")
		})
	}
}
