package workflow

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Machine decides for workflow runs.
type Machine struct {
	// Slots says that a run needs a slot of its tenant.
	Slots bool
}

type decision = durable.Decision[State]

// maxEvents bounds the events of one run.
const maxEvents = 1_000

// maxMessage bounds the message of a failed run, in characters.
const maxMessage = 2_000

const internalMessage = "The run could not go on because of an internal error."

// Decide returns what m changes. A decision without facts changes only what the activation
// remembers. A message that comes too late changes nothing.
func (mc Machine) Decide(s State, m any, now time.Time) (decision, error) {
	c := &change{s: s, now: now}
	if l, ok := m.(durable.Leaving); ok {
		m, c.leaving = l.Msg, true
	}
	if s.Status == "" {
		return create(s, m, now)
	}
	if c.leaving && s.broken() && !order(m) { // the next activation fails it
		return decision{Next: s}, nil
	}
	var changed bool
	var err error
	switch m := m.(type) {
	case durable.Activated:
		changed = c.activated()
	case msg.StartWorkflow: // accepted before
		c.reply = msg.Started{Run: s.ID}
	case msg.SlotGranted:
		changed = c.slotGranted()
	case Walked:
		changed = c.walked(m)
	case Found:
		changed = c.found(m)
	case Planned:
		changed = c.planned(m)
	case Previewed:
		changed = c.previewed(m)
	case ToolAnswered:
		changed = c.answer(m)
	case msg.InjectEvent:
		changed, err = c.inject(m)
	case msg.ChildChanged:
		changed = c.childChanged(m.Run, nil)
	case msg.ApprovalsDecided:
		changed = c.approvalsDecided(nil)
	case durable.TimerDue:
		changed = c.timerDue(m.Name, nil)
	case durable.Answered:
		changed = c.answered(m)
	case msg.CancelRun:
		changed = c.cancel()
	case ChildGone:
		changed = c.childGone(m)
	case durable.EffectFailed:
		changed = c.fault()
	case durable.Refused:
		changed, err = c.refused(m.Msg)
	}
	switch {
	case err != nil:
		return decision{}, err
	case c.question != nil:
		return decision{Question: c.question}, nil
	case !changed:
		return decision{Next: s, Reply: c.reply}, nil
	}
	if len(c.facts) > 0 {
		c.s.Owes = len(mc.Owed(c.s)) > 0 || c.s.keepsAnswer() || c.s.broken()
	}
	return decision{Next: c.s, Changed: true, Facts: c.facts, Reply: c.reply}, nil
}

// order reports whether m comes from outside.
func order(m any) bool {
	switch m.(type) {
	case msg.StartWorkflow, msg.InjectEvent, msg.CancelRun:
		return true
	}
	return false
}

// Owed returns what the run waits for by itself: a slot, a walk, the versions of agents, plans,
// previews and answers of calls, failures that are kept, the end of children that it cancels.
func (mc Machine) Owed(s State) []durable.Effect {
	var owed []durable.Effect
	switch {
	case s.Status.Terminal():
		for _, run := range s.Children {
			owed = append(owed, CancelChild{Run: run, Steps: s.Steps})
		}
	case s.Plan == nil:
	case s.Status == lifecycle.RunQueued && mc.Slots && !s.Granted:
		return []durable.Effect{AcquireSlot{Run: s.ID, CreatedAt: s.CreatedAt}}
	case s.Status == lifecycle.RunQueued:
		return []durable.Effect{Walk{N: s.Walks, Of: &s, Queue: []End{{Node: starts}}}}
	default:
		if len(s.Queue) > 0 {
			owed = append(owed, Walk{N: s.Walks, Of: &s, Queue: s.Queue})
		}
		for _, o := range s.Open {
			switch t := s.typeOf(o); {
			case t == flow.Agent && !o.Begun:
				owed = append(owed, FindAgent{Idx: o.Idx, Agent: s.Plan.Node(o.Node).AgentID})
			case t == flow.Tool && o.Call == nil:
				owed = append(owed, PlanCall{Step: o, Of: &s})
			case t == flow.Tool && o.previews():
				owed = append(owed, Preview{Step: o, Of: &s})
			case t == flow.Tool && o.Call.Called && o.Call.Answer == nil && !s.ends(o.Node):
				owed = append(owed, CallTool{Step: o, Of: &s})
			case t == flow.Tool && o.Call.Called && o.Call.Answer != nil && o.Call.Answer.IsError:
				owed = append(owed, GiveAnswer{Step: o})
			}
		}
	}
	return owed
}

// create accepts a run.
func create(s State, m any, now time.Time) (decision, error) {
	if refused, ok := m.(durable.Refused); ok {
		if _, starting := refused.Msg.(msg.StartWorkflow); starting {
			return decision{}, problem.Invalid("input", "cannot be stored")
		}
	}
	start, ok := m.(msg.StartWorkflow)
	switch {
	case !ok:
		return decision{}, problem.NotFound("run")
	case s.Unread:
		return decision{}, problem.Unavailable("The workflow's definition could not be read.", time.Second)
	}
	s.Workflow, s.Version, s.Test = start.Workflow, start.Version, start.Test
	s.Input, s.Variables, s.Origin, s.EndUserID, s.OrgNode = start.Input, start.Variables, start.Origin, start.EndUserID, start.Node
	s.Status, s.CreatedAt = lifecycle.RunQueued, now
	s.Owes = true
	return decision{Next: s, Changed: true, Facts: []any{Created{}}, Reply: msg.Started{Run: s.ID}}, nil
}

// change is a decision in the making.
type change struct {
	s        State
	now      time.Time
	facts    []any
	reply    any
	question any
	// leaving: the run continues on another node, and begins no call here.
	leaving bool
	// refuses: the database refuses rows of the run, so what came back is not written.
	refuses bool
}

func (c *change) fact(f any) { c.facts = append(c.facts, f) }

func (c *change) seq() int64 {
	c.s.Seq++
	return c.s.Seq
}

// activated ends a run that cannot go on, and queues what events of the rows end.
func (c *change) activated() bool {
	switch {
	case c.s.Status.Terminal():
		return false
	case c.s.Plan == nil, c.s.Damage != "":
		return c.fault()
	case c.s.Status == lifecycle.RunQueued:
		return false
	}
	changed := c.lost()
	if c.s.Status.Terminal() {
		return true
	}
	changed = c.match() || changed
	return c.decided() || changed
}

func (c *change) slotGranted() bool {
	if c.s.Status != lifecycle.RunQueued || c.s.Granted {
		return false
	}
	c.s.Granted = true
	return true
}

// enqueue notes the end of a node, unless its end is noted already.
func (c *change) enqueue(e End) bool {
	if c.s.ends(e.Node) {
		return false
	}
	c.s.Queue = append(slices.Clip(c.s.Queue), e)
	return true
}

// match gives events to the nodes that wait for them: each node, from the oldest on, gets the
// oldest event of its name.
func (c *change) match() (changed bool) {
	for _, o := range c.s.Open {
		if c.s.typeOf(o) != flow.WaitEvent || c.s.ends(o.Node) {
			continue
		}
		i := slices.IndexFunc(c.s.Events, func(e Event) bool { return e.Name == o.Text && !c.given(e.Seq) })
		if i >= 0 {
			e := &c.s.Events[i]
			changed = c.enqueue(End{Node: o.Node, Output: flow.EventOutput(e.Payload), Event: &e.Seq}) || changed
		}
	}
	return changed
}

// given reports whether a queued end has the event.
func (c *change) given(seq int) bool {
	return slices.ContainsFunc(c.s.Queue, func(e End) bool { return e.Event != nil && *e.Event == seq })
}

// walked commits a walk.
func (c *change) walked(m Walked) bool {
	if c.s.Status.Terminal() || m.N != c.s.Walks {
		return false
	}
	c.s.Walks++
	if (m.Failure != nil || m.Fault != "") && c.pending() && c.keepQueued() {
		return true // the walk is owed anew, and fails again
	}
	if c.s.Status == lifecycle.RunQueued {
		c.begin()
	} else {
		c.s.Queue = c.s.Queue[min(m.taken(), len(c.s.Queue)):]
	}
	c.s.Flow = m.Flow
	c.s.Open = slices.Clone(c.s.Open)
	for i := range m.Parts {
		c.part(&m.Parts[i])
	}
	if m.Fault != "" {
		c.s.Damage = m.Fault
	}
	switch {
	case c.s.Damage != "":
		c.fault()
	case m.Failure != nil:
		c.fail(m.Failure.Code, m.Failure.Message)
	case c.s.Flow.Done():
		c.s.Output = m.Output
		c.end(lifecycle.RunSucceeded)
	default:
		if m.Call != nil {
			c.planned(*m.Call)
		}
		c.join()
		if c.leaving {
			c.keepAnswers()
		}
		if !c.s.Status.Terminal() {
			c.wait()
			c.match()
		}
	}
	return true
}

// taken returns how many ends were walked. One whose walk failed before its node ended stays in the
// queue: the run ends, and with it the node.
func (m *Walked) taken() int {
	n := len(m.Parts)
	if m.Failure == nil && m.Fault == "" || n == 0 {
		return n
	}
	last := &m.Parts[n-1]
	if slices.ContainsFunc(last.Facts, func(f Fact) bool { return f.Status == flow.Ended && f.Node == last.End.Node }) {
		return n
	}
	return n - 1
}

// begin makes a queued run running.
func (c *change) begin() {
	now := c.now
	c.s.Status, c.s.StartedAt = lifecycle.RunRunning, &now
	c.seq() // event.SeqStarted
	c.fact(Began{})
}

// part notes what followed from the end of one node.
func (c *change) part(p *Part) {
	for i := range p.Facts {
		switch f := &p.Facts[i]; f.Status {
		case flow.Active:
			c.nodeBegan(f)
		case flow.Ended:
			e := End{Node: f.Node}
			if f.Node == p.End.Node {
				e = p.End
			}
			c.nodeEnded(f, e)
		case flow.Skipped:
			c.fact(NodeSkipped{Node: f.Node, Seq: c.seq()})
		}
	}
}

// nodeBegan begins the step of a node.
func (c *change) nodeBegan(f *Fact) {
	n := c.s.Plan.Node(f.Node)
	o := &Step{Idx: c.s.Steps, Node: f.Node, Seq: c.seq(), Input: f.Input, Text: f.Text}
	c.s.Steps++
	c.s.Open = append(c.s.Open, o)
	began := NodeBegan{Step: o, Status: lifecycle.StepRunning, Shown: f.Shown, Started: c.seq()}
	if pauses(n.Type) {
		began.Status = lifecycle.StepWaiting
	}
	c.fact(began)
	if !pauses(n.Type) {
		return
	}
	c.fact(NodePaused{Step: o, Seq: c.seq()})
	switch {
	case n.Type == flow.Gate, n.Type == flow.HumanTask:
		c.ask(o, approvalOf(c.s.ID, o.Idx, c.now), terms(n))
	case n.Type == flow.Delay:
		c.fact(TimerSet{o.timer(), c.now.Add(duration(n.Seconds, time.Second))})
	case n.Type == flow.WaitEvent && n.TimeoutMinutes > 0:
		c.fact(TimerSet{o.timer(), c.now.Add(duration(n.TimeoutMinutes, time.Minute))})
	}
}

func duration(n float64, unit time.Duration) time.Duration {
	return time.Duration(n * float64(unit)).Truncate(time.Microsecond)
}

// nodeEnded ends the step of a node with its output.
func (c *change) nodeEnded(f *Fact, e End) {
	o := c.s.step(f.Node)
	v := &kept{Output: f.Output}
	if c.s.Plan.Node(f.Node).Type == flow.Set {
		v.Values = o.Input
	}
	c.stepEnded(o, e, f.Shown, v)
}

// stepEnded ends a step whose node ended.
func (c *change) stepEnded(o *Step, e End, shown json.RawMessage, v *kept) {
	ended := NodeEnded{Step: o, Status: lifecycle.StepSucceeded, Shown: shown, Kept: v, Child: e.Output.ChildRunID, TokensIn: e.TokensIn, TokensOut: e.TokensOut, CostUSD: e.CostUSD}
	c.s.TokensIn += e.TokensIn
	c.s.TokensOut += e.TokensOut
	c.s.CostUSD += e.CostUSD
	c.close(o)
	if e.Decided != nil {
		c.fact(WakeGone{e.Decided.ID})
		c.fact(Resumed{*e.Decided, c.seq()})
	}
	if e.Event != nil {
		c.fact(EventTaken{Seq: *e.Event, Idx: o.Idx})
		c.s.Events = slices.DeleteFunc(slices.Clone(c.s.Events), func(x Event) bool { return x.Seq == *e.Event })
	}
	if o.Call != nil {
		ended.Shown = e.Shown
		c.fact(CallEnded{Step: o, OK: true, Shown: e.Shown, Seq: c.seq()})
	}
	if c.s.typeOf(o) != "" { // its frame names the node
		ended.Seq = c.seq()
	}
	c.fact(ended)
}

// close removes an open step, with its timers.
func (c *change) close(o *Step) {
	c.s.Open = slices.DeleteFunc(slices.Clone(c.s.Open), func(x *Step) bool { return x == o })
	switch t := c.s.typeOf(o); {
	case o.Begun:
		c.fact(TimerGone{msg.ChildTimer(child(c.s.ID, o.Idx))})
	case t == flow.Delay, t == flow.WaitEvent && c.s.Plan.Node(o.Node).TimeoutMinutes > 0, t == "":
		set := len(c.facts)
		c.facts = slices.DeleteFunc(c.facts, func(f any) bool { t, ok := f.(TimerSet); return ok && t.Name == o.timer() })
		if len(c.facts) == set { // it was not set in this decision
			c.fact(TimerGone{o.timer()})
		}
	}
}

// found begins the child run of a step.
func (c *change) found(m Found) bool {
	o := c.s.at(m.Idx)
	if c.s.Status.Terminal() || o == nil || o.Begun {
		return false
	}
	n := c.s.Plan.Node(o.Node)
	if m.Version == 0 {
		c.fail(lifecycle.FailChildFailed, "The agent of the node "+n.ID+" has no published version.")
		return true
	}
	begun := *o
	begun.Begun = true
	c.s.Open = slices.Clone(c.s.Open)
	c.s.Open[slices.Index(c.s.Open, o)] = &begun
	c.fact(ChildBegan{Step: &begun, Run: child(c.s.ID, o.Idx), Agent: n.AgentID, Version: m.Version, At: c.now})
	return true
}

// inject accepts an event. One that was accepted before counts once.
func (c *change) inject(m msg.InjectEvent) (bool, error) {
	c.reply = msg.Done{}
	op := "op/" + m.Op.String()
	switch {
	case c.s.Seen[op]:
		return false, nil
	case m.ID != "" && c.s.Seen[seenID(m.ID)]:
		if m.Idempotency == nil {
			return false, nil
		}
		c.fact(EventKnown{}) // the answer is kept under its key
		return true, nil
	case c.s.Status.Terminal():
		return false, problem.New(problem.CodeRunTerminal, "The run has ended.")
	case c.s.Heard >= maxEvents:
		return false, problem.Invalid("name", "the run has had "+strconv.Itoa(maxEvents)+" events, which is the most it can have")
	case c.s.unheard()+len(m.Name)+len(m.Payload) > flow.MaxData:
		return false, problem.Invalid("payload", "the events that wait for their nodes are larger than "+strconv.Itoa(flow.MaxData>>20)+" MiB together")
	}
	seen := maps.Clone(c.s.Seen)
	if seen == nil {
		seen = map[string]bool{}
	}
	seen[op] = true
	if m.ID != "" {
		seen[seenID(m.ID)] = true
	}
	e := Event{Seq: c.s.Heard, Name: m.Name, Payload: m.Payload}
	c.s.Seen, c.s.Events, c.s.Heard = seen, append(slices.Clip(c.s.Events), e), c.s.Heard+1
	c.fact(EventCame{Event: e, ID: m.ID, Op: m.Op})
	if c.s.Plan != nil {
		c.match()
	}
	return true, nil
}

// unheard returns the size of the events that woke no node so far.
func (s *State) unheard() (size int) {
	for i := range s.Events {
		size += len(s.Events[i].Name) + len(s.Events[i].Payload)
	}
	return size
}

func seenID(event string) string { return "id/" + event }

// timerDue handles a timer. One that has nothing more to do is deleted.
func (c *change) timerDue(name string, known *Child) bool {
	if run, ok := strings.CutPrefix(name, msg.TimerChild); ok {
		u, err := id.Parse(run)
		if r := (id.RunID{UUID: u}); err == nil && !c.s.Status.Terminal() && c.s.ofChild(r) != nil {
			return c.childChanged(r, known)
		}
		return c.drop(name)
	}
	if u, err := id.Parse(name); err == nil { // of a decided approval
		a := id.ApprovalID{UUID: u}
		if c.s.Status == lifecycle.RunWaitingApproval && slices.ContainsFunc(c.s.Open, func(o *Step) bool { return o.Approval != nil && o.Approval.ID == a }) {
			c.question = ReadApprovals{}
			return false
		}
		c.fact(WakeGone{a})
		return true
	}
	i := slices.IndexFunc(c.s.Open, func(o *Step) bool { return o.timer() == name })
	if c.s.Status.Terminal() || i < 0 {
		return c.drop(name)
	}
	o := c.s.Open[i]
	if c.s.typeOf(o) == flow.Delay {
		return c.enqueue(End{Node: o.Node})
	}
	if changed := c.match(); c.s.ends(o.Node) { // an event came before
		return changed
	}
	c.fail(lifecycle.FailEventTimeout, "The node "+c.s.Plan.Node(o.Node).ID+" waited for the event "+strconv.Quote(o.Text)+" in vain.")
	return true
}

func (c *change) drop(name string) bool {
	c.fact(TimerGone{name})
	return true
}

// childChanged asks how a child run is, and decides what follows from the answer.
func (c *change) childChanged(run id.RunID, known *Child) bool {
	o := c.s.ofChild(run)
	switch {
	case c.s.Status.Terminal(), o == nil, c.s.ends(o.Node):
		return false
	case known == nil:
		c.question = ReadChild{Run: run}
		return false
	}
	node := c.s.Plan.Node(o.Node).ID
	switch {
	case known.Status == lifecycle.RunSucceeded:
		out := flow.Output{ChildRunID: &run}
		var said struct {
			Text string          `json:"text"`
			JSON json.RawMessage `json:"json"`
		}
		if json.Unmarshal(known.Output, &said) == nil {
			out.Text, out.JSON = said.Text, said.JSON
		}
		return c.enqueue(End{Node: o.Node, Output: out, TokensIn: known.TokensIn, TokensOut: known.TokensOut, CostUSD: known.CostUSD})
	case known.Status == lifecycle.RunWaitingApproval:
		c.charge(known)
		c.fail(lifecycle.FailChildWaitingApproval, "The agent of the node "+node+" waits for an approval. Use a gate before it.")
		return true
	case known.Status.Terminal():
		c.charge(known)
		c.fail(lifecycle.FailChildFailed, "The agent of the node "+node+" failed: "+known.Code+": "+known.Message)
		return true
	}
	return false
}

// charge adds what a child used to the sums of a run that fails because of it.
func (c *change) charge(known *Child) {
	c.s.TokensIn += known.TokensIn
	c.s.TokensOut += known.TokensOut
	c.s.CostUSD += known.CostUSD
}

// answered decides again with the answer to a question.
func (c *change) answered(m durable.Answered) bool {
	if known, ok := m.Answer.(Approvals); ok {
		return c.approvalsDecided(known)
	}
	known, ok := m.Answer.(Child)
	if !ok {
		return false
	}
	switch m := m.Msg.(type) {
	case msg.ChildChanged:
		return c.childChanged(m.Run, &known)
	case durable.TimerDue:
		return c.timerDue(m.Name, &known)
	}
	return false
}

// cancel ends the run on request. A second request gets the status.
func (c *change) cancel() bool {
	open := !c.s.Status.Terminal()
	if open {
		c.fact(Stopped{})
		c.s.Error = &Failure{lifecycle.FailCancelled, "The run was cancelled."}
		c.end(lifecycle.RunCancelled)
	}
	c.reply = msg.Status{Run: c.s.ID, Status: c.s.Status}
	return open
}

// fail ends the run. The message may quote what nodes left: what cannot be stored of that goes.
func (c *change) fail(code lifecycle.Failure, message string) {
	c.s.Error = &Failure{code, problem.Clip(model.Clean(message), maxMessage)}
	c.end(lifecycle.RunFailed)
}

// fault fails a run that an internal error stops.
func (c *change) fault() bool {
	if c.s.Status.Terminal() {
		return false
	}
	if c.s.Status == lifecycle.RunQueued {
		c.begin()
	}
	c.fail(lifecycle.FailInternal, internalMessage)
	return true
}

// refused ends a run whose rows the database refuses, without these rows. Orders from outside
// are refused and change nothing.
func (c *change) refused(m any) (bool, error) {
	c.refuses = true
	switch m.(type) {
	case msg.CancelRun:
		return false, problem.New(problem.CodeInternal, "")
	case msg.InjectEvent:
		return false, problem.Invalid("payload", "cannot be stored")
	}
	return c.fault(), nil
}

// end makes the run terminal: no step stays open, and no timer. A node whose end is queued ended
// before its run did, and keeps what came back. Children that are open are noted, to be cancelled.
func (c *change) end(status lifecycle.RunStatus) {
	c.withdraw(c.s.Open)
	c.leaveSkills(c.s.Open)
	for _, o := range c.s.Open {
		if e, ok := c.endOf(o); ok {
			c.stepEnded(o, e, shown(&flow.Fact{Status: flow.Ended, Output: e.Output}), nil)
			continue
		}
		ended := NodeEnded{Step: o, Status: lifecycle.StepFailed, Shown: o.Shown}
		if o.Begun {
			run := child(c.s.ID, o.Idx)
			c.s.Children, ended.Child = append(slices.Clip(c.s.Children), run), &run
		}
		c.close(o)
		if o.Call != nil && o.Call.Called {
			if a := o.Call.Answer; ended.Shown == nil && a != nil && !c.refuses {
				ended.Shown = a.Shown
			}
			if ended.Shown == nil {
				ended.Shown = cutCall
			}
			c.fact(CallEnded{Step: o, Shown: ended.Shown, Seq: c.seq()})
		}
		if c.s.typeOf(o) != "" {
			ended.Seq = c.seq()
		}
		c.fact(ended)
	}
	now := c.now
	c.s.Open, c.s.Queue, c.s.Status, c.s.FinishedAt = nil, nil, status, &now
	c.seq()
	c.fact(Ended{})
}

// endOf returns how the node of a step ended that no walk took through the graph: its end is
// queued, or its call was answered on a node that the run was leaving.
func (c *change) endOf(o *Step) (End, bool) {
	if c.refuses {
		return End{}, false
	}
	if i := slices.IndexFunc(c.s.Queue, func(e End) bool { return e.Node == o.Node }); i >= 0 {
		return c.s.Queue[i], true
	}
	if o.Call != nil && o.Call.Answer != nil && !o.Call.Answer.IsError {
		return callEnd(o.Node, o.Call.Answer), true
	}
	return End{}, false
}

// childGone removes a child that has ended. The sums become what all children used: they only
// grow, so of several answers the one that was read last has all of it, in whatever order they
// come.
func (c *change) childGone(m ChildGone) bool {
	if !slices.Contains(c.s.Children, m.Run) {
		return false
	}
	c.s.Children = slices.DeleteFunc(slices.Clone(c.s.Children), func(r id.RunID) bool { return r == m.Run })
	c.s.TokensIn, c.s.TokensOut, c.s.CostUSD = max(c.s.TokensIn, m.Used.TokensIn), max(c.s.TokensOut, m.Used.TokensOut), max(c.s.CostUSD, m.Used.CostUSD)
	c.fact(ChildEnded{Run: m.Run})
	return true
}
