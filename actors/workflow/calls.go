package workflow

import (
	"encoding/json"
	"regexp"
	"slices"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// Tool nodes. Like machine.go, this file waits for nothing, reads no clock and mints no id.
//
//	started ─ planned ─► called ── ToolAnswered ──► walked: the node ends
//	             │ └─ joins another node's call ┄ that node ended ┄► called
//	             │ └─ gated ──► pending ┄ approved, edited ┄► called
//	             │       └─ of a browser skill ── Previewed ──► pending, as above
//	             │                                    └─ it did not land ──► the run fails, as below
//	             └─ refused ──► the run fails with TOOL_FAILED
//
// A call of a browser skill with the values of another open node's call, which has not begun, joins it:
// one run of the skill, one approval, and both nodes get its result. After the other call has begun, the
// idempotency key of the run finds its result (service.md, Browser skill run outcomes).
//
// A call that is all that the run does next is planned by the walk that starts its node, and one
// commit starts and calls it. The commit that calls is the receipt: it comes before anything is
// sent. A call whose answer was lost is sent again under its key if it is repeatable; else the
// run fails.
//
// The form of a gated browser skill is filled before people are asked: the plan, which names the run
// of the skill, is committed, then the preview is owed, in each activation until the approval opens.

// Call is the planned call of a step. It is immutable.
type Call struct {
	Plan   tool.Planned
	Called bool // its receipt is committed
	// Again says that an earlier activation began the call, which may have taken effect.
	Again bool
	// Previewed says that what comes before the approval has ended. It belongs to the activation.
	Previewed bool
	// Answer is the outcome of a call that was answered on a node that the run was leaving, or that
	// is in a row before a commit that may be refused.
	Answer *tool.Outcome
}

// Messages and facts of calls.
type (
	// Planned is the plan of a step's call.
	Planned struct {
		Idx  int
		Plan tool.Planned
	}
	// ToolAnswered is the outcome of a step's call.
	ToolAnswered struct {
		Idx     int
		Outcome tool.Outcome
		// Walked is the walk of the answer, if it was all that the run did; else nil.
		Walked *Walked
	}
	// Previewed is the end of what comes before the approval of a step's call. A nil Outcome
	// opens the approval, any other one is that of the call.
	Previewed struct {
		Idx     int
		Outcome *tool.Outcome
	}
	// CallPrepares is a planned call that neither begins nor waits for people yet: the form of a gated one
	// is filled before its approval opens, and one that joins another waits for that one's end.
	CallPrepares struct{ Step *Step }
	// CallGated is a call that waits for an approval.
	CallGated struct{ Step *Step }
	// StepCalled is the receipt of a call. Its mark is tool.called.
	StepCalled struct {
		Step *Step
		Seq  int64
		// Began says that the step starts in the same decision.
		Began bool
	}
	// SkillsLeft are the runs of browser skills that calls of an ended run have made. Each of them
	// reads what became of the run.
	SkillsLeft struct{ Runs []id.SkillRunID }
	// CallAnswered is a call whose answer is kept for the run's next node.
	CallAnswered struct{ Step *Step }
	// CallEnded is the end of a call. Its mark is tool.result.
	CallEnded struct {
		Step  *Step
		OK    bool
		Shown json.RawMessage
		Seq   int64
	}
)

var (
	cutCall = tool.FailedResult(tool.ErrUnknownOutcome, "The run ended before the call was answered.").Shown
)

// set replaces an open step by another version of it.
func (c *change) set(old, next *Step) {
	c.s.Open = slices.Clone(c.s.Open)
	c.s.Open[slices.Index(c.s.Open, old)] = next
}

// planned begins, gates or refuses a call.
func (c *change) planned(m Planned) bool {
	o := c.s.at(m.Idx)
	if c.leaving || c.s.Status.Terminal() || o == nil || o.Call != nil {
		return false
	}
	switch p := m.Plan; {
	case p.Refused != nil:
		c.toolFailed(o, *p.Refused)
	case c.s.same(&p) != nil:
		joined := *o
		joined.Call = &Call{Plan: p.Joined(c.s.same(&p).Call.Plan.Skill.Run)}
		c.set(o, &joined)
		c.fact(CallPrepares{&joined})
	case p.Terms != nil:
		gated := *o
		gated.Call = &Call{Plan: p}
		c.set(o, &gated)
		if gated.previews() {
			c.fact(CallPrepares{&gated})
		} else {
			c.gate(&gated)
		}
	default:
		c.call(o, p)
	}
	return true
}

// same returns the open step whose call of a browser skill has the same values as p and has not begun,
// nil if there is none.
func (s *State) same(p *tool.Planned) *Step {
	key := p.SkillKey()
	i := slices.IndexFunc(s.Open, func(o *Step) bool {
		return key != "" && o.Call != nil && !o.Call.Called && !o.Call.joins() && o.Call.Plan.SkillKey() == key
	})
	if i < 0 {
		return nil
	}
	return s.Open[i]
}

// joins reports whether the call gets the result of another node's call.
func (k *Call) joins() bool { return k.Plan.Skill != nil && k.Plan.Skill.Joins }

// join begins the calls whose result another node's call has brought. They are repeatable.
func (c *change) join() {
	for _, o := range c.s.Open {
		waits := func(x *Step) bool {
			return x.Call != nil && !x.Call.joins() && x.Call.Plan.Skill != nil && x.Call.Plan.Skill.Run == o.Call.Plan.Skill.Run
		}
		if o.Call != nil && o.Call.joins() && !o.Call.Called && !slices.ContainsFunc(c.s.Open, waits) {
			c.call(o, o.Call.Plan)
		}
	}
}

// gate opens the approval of a call, and waits.
func (c *change) gate(o *Step) {
	p := &o.Call.Plan
	c.fact(CallGated{o})
	c.fact(NodePaused{Step: o, Seq: c.seq()})
	c.ask(o, *p.Approval, p.Terms)
	c.wait()
}

// previews reports whether something comes before the approval of the step's call, and has not
// ended.
func (s *Step) previews() bool {
	k := s.Call
	return k != nil && !k.Called && !k.Previewed && s.Approval == nil && k.Plan.Terms != nil && k.Plan.DecidesOn() != nil
}

// previewed ends what comes before an approval: the approval opens, or the call has ended.
func (c *change) previewed(m Previewed) bool {
	o := c.s.at(m.Idx)
	if c.s.Status.Terminal() || o == nil || !o.previews() {
		return false
	}
	next, call := *o, *o.Call
	next.Call = &call
	switch out := m.Outcome; {
	case out == nil:
		call.Previewed = true
		c.set(o, &next)
		c.gate(&next)
	case out.IsError:
		c.toolFailed(o, *out)
	default: // an earlier call of the run had the same values: its result is that of this one
		call.Called, call.Answer = true, out
		c.set(o, &next)
		c.fact(StepCalled{Step: &next, Seq: c.seq()})
		if !c.leaving {
			c.answer(ToolAnswered{Idx: m.Idx, Outcome: *out})
		}
	}
	return true
}

// leaveSkills tells the runs of browser skills that calls of open steps have made that the run has
// ended.
func (c *change) leaveSkills(open []*Step) {
	var runs []id.SkillRunID
	for _, o := range open {
		if o.Call != nil && o.Call.Plan.Skill != nil && !o.Call.joins() {
			runs = append(runs, o.Call.Plan.Skill.Run)
		}
	}
	if len(runs) > 0 {
		c.fact(SkillsLeft{runs})
	}
}

// call commits the receipt of a call. The row of a step that starts in the same commit is written
// with it.
func (c *change) call(o *Step, p tool.Planned) {
	called := *o
	called.Call, called.Approval = &Call{Plan: p, Called: true}, nil
	c.set(o, &called)
	f := StepCalled{Step: &called, Seq: c.seq()}
	for i := range c.facts {
		if began, ok := c.facts[i].(NodeBegan); ok && began.Step == o {
			began.Step, began.Shown = &called, p.Shown
			c.facts[i], f.Began = began, true
		}
	}
	c.fact(f)
}

// answer queues the end of a node whose call was answered.
func (c *change) answer(m ToolAnswered) bool {
	o := c.s.at(m.Idx)
	switch {
	case c.s.Status.Terminal(), o == nil, o.Call == nil, !o.Call.Called, c.s.ends(o.Node):
		return false
	case c.leaving: // nothing is walked here any more
		c.keep(o, m.Outcome)
		return true
	case m.Outcome.IsError && o.Call.Answer == nil && c.pending():
		c.keep(o, m.Outcome)
		return true
	case m.Outcome.IsError:
		c.toolFailed(o, m.Outcome)
		return true
	}
	changed := c.enqueue(callEnd(o.Node, &m.Outcome))
	if w := m.Walked; w != nil && len(c.s.Queue) == 1 && w.N == c.s.Walks { // nothing came in between
		return c.walked(*w)
	}
	return changed
}

// callEnd is the end of a node whose call was answered.
func callEnd(node int, out *tool.Outcome) End {
	return End{Node: node, Output: flow.ToolOutput(out.Content), Shown: out.Shown}
}

// keep keeps the answer of a call for the run's next node.
func (c *change) keep(o *Step, out tool.Outcome) {
	answered, call := *o, *o.Call
	call.Answer, answered.Call = &out, &call
	c.set(o, &answered)
	c.fact(CallAnswered{&answered})
}

// pending reports whether an approval of the run may have been decided by now. A commit that then ends the
// run is refused, and with it goes what is in memory: the answers of calls are kept before it.
func (c *change) pending() bool {
	return slices.ContainsFunc(c.s.Open, func(o *Step) bool { return o.Approval != nil && !o.Approval.Status.Terminal() })
}

// keepQueued keeps the answers of queued ends, which stay queued. It reports whether there were any.
func (c *change) keepQueued() (kept bool) {
	for _, e := range c.s.Queue {
		if o := c.s.step(e.Node); o != nil && o.Call != nil && o.Call.Answer == nil {
			c.keep(o, tool.Outcome{Content: e.Output.Text, Shown: e.Shown})
			kept = true
		}
	}
	return kept
}

// keepAnswers keeps the answers of queued ends, which are not walked here any more.
func (c *change) keepAnswers() {
	queue := c.s.Queue
	c.s.Queue = nil
	for _, e := range queue {
		if o := c.s.step(e.Node); o != nil && o.Call != nil {
			c.keep(o, tool.Outcome{Content: e.Output.Text, Shown: e.Shown})
		} else {
			c.s.Queue = append(c.s.Queue, e)
		}
	}
}

// lost ends the calls that an older activation began: with the answer that it kept, else as
// failed if the call cannot be repeated.
func (c *change) lost() (changed bool) {
	for _, o := range c.s.Open {
		if o.Call != nil && o.Call.Answer != nil {
			if changed = c.answer(ToolAnswered{Idx: o.Idx, Outcome: *o.Call.Answer}) || changed; c.s.Status.Terminal() {
				return true
			}
			continue
		}
		if o.Call != nil && o.Call.Called && !o.Call.Plan.Repeat {
			c.toolFailed(o, tool.UnknownOutcome)
			return true
		}
	}
	return changed
}

// keepsAnswer reports whether the next activation has an answer to go on from.
func (s *State) keepsAnswer() bool {
	return slices.ContainsFunc(s.Open, func(o *Step) bool { return o.Call != nil && o.Call.Answer != nil && !s.ends(o.Node) })
}

// toolFailed fails the run because a call was refused or failed.
func (c *change) toolFailed(o *Step, out tool.Outcome) {
	failed := *o
	failed.Shown = out.Shown
	c.set(o, &failed)
	c.fail(lifecycle.FailToolFailed, "The tool call of the node "+c.s.Plan.Node(o.Node).ID+" failed"+codeOf(out)+".")
}

var errorCode = regexp.MustCompile(`^[A-Z_]{1,40}$`)

// codeOf returns the code of a failed outcome for a sentence, empty if it has none. The
// outcome itself may hold a tenant's data.
func codeOf(out tool.Outcome) string {
	var said struct {
		Error string `json:"error"`
	}
	if json.Unmarshal([]byte(out.Content), &said) != nil || !errorCode.MatchString(said.Error) && !slices.Contains(skill.Codes, skill.Code(said.Error)) {
		return ""
	}
	return " (" + said.Error + ")"
}

// callDecided carries out what people decided about a gated call.
func (c *change) callDecided(o *Step) {
	a, p := o.Approval, o.Call.Plan
	c.fact(WakeGone{a.ID})
	c.fact(Resumed{Decided{a.ID, a.Decision}, c.seq()})
	switch a.Status {
	case lifecycle.ApprovalApproved:
	case lifecycle.ApprovalEdited:
		p.Args, p.Shown = a.Edited, tool.KeepKey(a.Shown, p.Shown)
	default:
		c.toolFailed(o, tool.FailedResult("REJECTED", "The call was not approved. Nothing was run."))
		return
	}
	if tool.Digest(p.Args) != a.Digest {
		c.s.Damage = "the arguments of a call are not those that were approved"
		c.fault()
		return
	}
	c.call(o, p)
}
