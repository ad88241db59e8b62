package workflow

import (
	"encoding/json"
	"slices"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// Gates and human tasks. The run opens an approval for each, and cancels the pending ones with
// its end; the actor of an approval writes everything in between. Like machine.go, this file
// waits for nothing, reads no clock and mints no id.
//
//	started ──► pending ┄ approved ┄► walked: the node ends
//	               └┄┄┄┄┄ rejected, expired ┄► the run fails with GATE_REJECTED

// Tools of approvals (service.md, Approval status).
const (
	toolGate  = "workflow:gate"
	toolHuman = "workflow:human_task"
)

// Defaults of a gate (open-parts.md, Approvals).
const (
	defaultRisk = lifecycle.RiskMedium
	defaultRole = lifecycle.RoleAdmin
	defaultSLA  = 1440 // minutes
)

// Approval is the approval of an open step as it was read last. A pending one may be decided by
// now.
type Approval struct {
	ID        id.ApprovalID
	Status    lifecycle.ApprovalStatus
	Decision  lifecycle.Action
	Feedback  string          // of the decision
	Edited    json.RawMessage // the answer to a form
	Risk      lifecycle.Risk
	Assignee  lifecycle.Role // after an escalation the higher role
	ExpiresAt time.Time
	Version   int64
	// Shown are edited arguments as their editor sent them, Digest that of the arguments to call.
	Shown  json.RawMessage
	Digest [32]byte
	Tool   string
}

// ReadApprovals is the question how the approvals of the run are. The answer is an Approvals.
type ReadApprovals struct{}

// Approvals are the approvals of a run, by the step.
type Approvals map[int]*Approval

// Decided is the approval that ended a node.
type Decided struct {
	ID       id.ApprovalID
	Decision lifecycle.Action
}

// Facts of approvals.
type (
	// Asked is an approval that opens. Its mark is approval.required.
	Asked struct {
		Step     *Step
		Approval *Approval
		Seq      int64
	}
	// Waits is a run that waits for people, now or still. Its mark is run.waiting.
	Waits struct{ Seq int64 }
	// Resumed is a decision that the run has heard. Its mark is run.resumed.
	Resumed struct {
		Decided
		Seq int64
	}
	// Withdrawn are approvals whose timers go; the pending ones are cancelled.
	Withdrawn struct{ Approvals []*Approval }
	// WakeGone is a timer of a decided approval that has nothing more to do.
	WakeGone struct{ Approval id.ApprovalID }
)

// toolOf returns the tool of the approval of a step.
func (s *State) toolOf(o *Step) string {
	switch {
	case o.Call != nil:
		return o.Call.Plan.Tool
	case s.typeOf(o) == flow.HumanTask:
		return toolHuman
	}
	return toolGate
}

// terms returns what a gate asks for, with defaults.
func terms(n *flow.Node) *tool.Terms {
	t := &tool.Terms{Risk: n.Risk, Role: n.ApproverRole, Required: max(n.RequiredApprovals, 1), SLAMinutes: n.SLAMinutes, Escalate: n.EscalateToRole,
		OnTimeout: agent.TimeoutReject, Policy: tool.PolicyRef{Name: n.ID, Kind: tool.KindManifest}}
	if t.Risk == "" {
		t.Risk = defaultRisk
	}
	if t.Role == "" {
		t.Role = defaultRole
	}
	if t.SLAMinutes <= 0 {
		t.SLAMinutes = defaultSLA
	}
	return t
}

// ask opens the approval of an open step.
func (c *change) ask(o *Step, a id.ApprovalID, t *tool.Terms) {
	asks := *o
	// To the microsecond, as stored: frame and row agree.
	asks.Approval = &Approval{ID: a, Status: lifecycle.ApprovalPending, Risk: t.Risk, Assignee: t.Role, ExpiresAt: c.now.Add(t.SLA()).Truncate(time.Microsecond), Version: 1, Tool: c.s.toolOf(o)}
	c.set(o, &asks)
	c.fact(Asked{Step: &asks, Approval: asks.Approval, Seq: c.seq()})
}

// wait sets the status of a run that is under way: it waits for people while one of its
// approvals is pending. An approval whose decision is queued is not pending any more, but the
// run goes on only with its walk. A run that went on waiting says so after a frame that lets
// its reader expect otherwise.
func (c *change) wait() {
	waits := slices.ContainsFunc(c.s.Open, func(o *Step) bool { return o.Approval != nil })
	switch {
	case waits && (c.s.Status == lifecycle.RunRunning || c.stirred()):
		c.s.Status = lifecycle.RunWaitingApproval
		c.fact(Waits{Seq: c.seq()})
	case !waits && c.s.Status == lifecycle.RunWaitingApproval:
		c.s.Status = lifecycle.RunRunning
	}
}

// stirred reports whether an approval was opened or heard since this decision last said that the
// run waits.
func (c *change) stirred() bool {
	for _, f := range slices.Backward(c.facts) {
		switch f.(type) {
		case Waits:
			return false
		case Asked, Resumed:
			return true
		}
	}
	return false
}

// approvalsDecided asks how the approvals are, and decides what follows from the answer.
func (c *change) approvalsDecided(known Approvals) bool {
	if c.leaving || c.s.Status != lifecycle.RunWaitingApproval {
		return false
	}
	if known == nil {
		if !slices.ContainsFunc(c.s.Open, func(o *Step) bool { return o.Approval != nil && !o.Approval.Status.Terminal() }) {
			return c.decided() // a decision is final: the load has read them all
		}
		c.question = ReadApprovals{}
		return false
	}
	changed := false
	for i, o := range c.s.Open {
		a, ok := known[o.Idx]
		if o.Approval == nil || !ok || a.Version < o.Approval.Version {
			continue
		}
		read := *o
		read.Approval = a
		c.s.Open = slices.Clone(c.s.Open)
		c.s.Open[i], changed = &read, true
	}
	return c.decided() || changed
}

// decided queues the ends of nodes whose approvals are given and begins such calls. If one is not
// given it fails the run, and no call begins.
func (c *change) decided() (changed bool) {
	var calls []*Step
	var refused *Step // the first one that is not given
	for _, o := range c.s.Open {
		a := o.Approval
		switch {
		case a == nil, !a.Status.Terminal(), c.s.ends(o.Node), o.Call != nil && o.Call.Called:
		case !c.s.given(o):
			if refused == nil {
				refused = o
			}
		case o.Call != nil:
			calls = append(calls, o)
		default:
			end := End{Node: o.Node, Decided: &Decided{a.ID, a.Decision}}
			if c.s.typeOf(o) == flow.HumanTask {
				end.Output = flow.HumanOutput(a.Feedback, nil)
				if a.Status == lifecycle.ApprovalEdited {
					end.Output = flow.HumanOutput("", a.Edited)
				}
			}
			changed = c.enqueue(end) || changed
		}
	}
	switch {
	case refused == nil:
	case refused.Call != nil:
		c.callDecided(refused)
		return true
	default:
		a := refused.Approval
		c.fact(Resumed{Decided{a.ID, a.Decision}, c.seq()})
		c.fail(lifecycle.FailGateRejected, "The node "+c.s.Plan.Node(refused.Node).ID+" was not approved: "+string(a.Status)+".")
		return true
	}
	for _, o := range calls {
		if c.callDecided(o); c.s.Status.Terminal() {
			return true
		}
	}
	if len(calls) > 0 {
		c.wait()
	}
	return changed || len(calls) > 0
}

// given reports whether the decided approval of a step lets its node go on.
func (s *State) given(o *Step) bool {
	switch o.Approval.Status {
	case lifecycle.ApprovalApproved:
		return true
	case lifecycle.ApprovalEdited:
		return o.Call != nil || s.typeOf(o) == flow.HumanTask
	case lifecycle.ApprovalResponded:
		return o.Call == nil && s.typeOf(o) == flow.HumanTask
	}
	return false
}

// withdraw ends the approvals of steps that end with their run.
func (c *change) withdraw(open []*Step) {
	var asked []*Approval
	for _, o := range open {
		if o.Approval != nil {
			asked = append(asked, o.Approval)
		}
	}
	if len(asked) > 0 {
		c.fact(Withdrawn{asked})
	}
}
