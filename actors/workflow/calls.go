package workflow

import (
	"encoding/json"
	"regexp"
	"slices"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// Tool nodes. Like machine.go, this file waits for nothing, reads no clock and mints no id.
//
//	started ─ planned ─► called ── ToolAnswered ──► walked: the node ends
//	             │ └─ gated ──► pending ┄ approved, edited ┄► called
//	             └─ refused ──► the run fails with TOOL_FAILED
//
// A call that is all that the run does next is planned by the walk that starts its node, and one
// commit starts and calls it. The commit that calls is the receipt: it comes before anything is
// sent. A call whose answer was lost is sent again under its key if it is repeatable; else the
// run fails.

// Call is the planned call of a step. It is immutable.
type Call struct {
	Plan   tool.Planned
	Called bool // its receipt is committed
	// Answer is the outcome of a call that was answered on a node that the run was leaving.
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
	}
	// CallGated is a call that waits for an approval.
	CallGated struct{ Step *Step }
	// StepCalled is the receipt of a call. Its mark is tool.called.
	StepCalled struct {
		Step *Step
		Seq  int64
		// Began says that the step starts in the same decision.
		Began bool
	}
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
	unknownOutcome = tool.FailedResult(tool.ErrUnknownOutcome, "The call was begun and its answer was lost. It may have taken effect.")
	cutCall        = tool.FailedResult(tool.ErrUnknownOutcome, "The run ended before the call was answered.").Shown
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
	case p.Terms != nil:
		gated := *o
		gated.Call = &Call{Plan: p}
		c.set(o, &gated)
		c.fact(CallGated{&gated})
		c.fact(NodePaused{Step: &gated, Seq: c.seq()})
		c.ask(&gated, *p.Approval, p.Terms)
		c.wait()
	default:
		c.call(o, p)
	}
	return true
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
	case m.Outcome.IsError:
		c.toolFailed(o, m.Outcome)
		return true
	}
	return c.enqueue(callEnd(o.Node, &m.Outcome))
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
			if changed = c.answer(ToolAnswered{o.Idx, *o.Call.Answer}) || changed; c.s.Status.Terminal() {
				return true
			}
			continue
		}
		if o.Call != nil && o.Call.Called && !o.Call.Plan.Repeat {
			c.toolFailed(o, unknownOutcome)
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
	if json.Unmarshal([]byte(out.Content), &said) != nil || !errorCode.MatchString(said.Error) {
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
