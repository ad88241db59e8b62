package run

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// The calls of a turn, from the model's request to their results. Like machine.go, this
// file waits for nothing, reads no clock and mints no id.
//
//	             refused ───────────────────────────────► ended
//	ModelAnswered ─ ungated ─► running ── ToolAnswered ──► ended
//	             gated ──► waiting ┄ approved, edited ┄► running
//	                          └┄┄┄┄ rejected, responded, expired ┄► ended

const (
	// maxCalls bounds the calls of one turn.
	maxCalls = 128
	// maxHandoffs is how often a run may hand its conversation over
	// (open-parts.md, Handoff).
	maxHandoffs = 5
	// maxReasoning bounds the model's reason for a call, in characters.
	maxReasoning = 2000
)

var (
	lostHandoff   = tool.FailedResult(tool.ErrToolFailed, "The conversation could not be handed over.")
	secondHandoff = tool.FailedResult(tool.ErrToolFailed, "One turn can hand the conversation over once. Nothing was run.")
	lostPreview   = tool.FailedResult(tool.ErrToolFailed, "The call could not be prepared. Nothing was run.")
	// cutCall is the output of a call that runs when its run ends. Its result is dropped.
	cutCall = tool.FailedResult(tool.ErrUnknownOutcome, "The run ended before the call was answered.").Shown
)

// key returns the key of the effect that carries the call out. It is the same after a
// crash.
func (k *Call) key() string { return "tool/" + strconv.Itoa(k.Idx) }

// calls returns the index in Calls of step idx if that is a running call, else -1.
func (s *State) calls(idx int) int {
	if s.Status != lifecycle.RunRunning {
		return -1
	}
	return slices.IndexFunc(s.Calls, func(k *Call) bool { return k.Idx == idx && k.Status == lifecycle.StepRunning })
}

// owedCalls returns the running calls. A handoff comes last, when no other call of the
// turn is open: the agent that made the calls gets their results.
func owedCalls(s *State) []durable.Effect {
	var owed []durable.Effect
	var handoff *Call
	for _, k := range s.Calls {
		switch {
		case k.previews():
			owed = append(owed, Preview{Call: k, Until: s.deadline(), Of: s})
		case k.Status == lifecycle.StepRunning && k.Kind == lifecycle.StepHandoff:
			handoff = k
		case k.Status == lifecycle.StepRunning:
			owed = append(owed, ToolCall{Call: k, Until: s.deadline(), Of: s})
		}
	}
	if len(owed) == 0 && handoff != nil {
		owed = append(owed, HandOff{Call: handoff, Until: s.deadline(), Of: s})
	}
	return owed
}

// begin makes the calls of a turn steps, in call order.
func (c *change) begin(m *ModelAnswered) {
	calls := m.Result.Calls
	switch {
	case m.Unplanned == lifecycle.FailLimitExceeded:
		c.s.Ran = max(c.s.Ran, c.s.maxTime())
		c.overTime()
		return
	case m.Unplanned != "":
		c.end(lifecycle.RunFailed, m.Unplanned, internalMessage)
		return
	case len(calls) > maxCalls:
		c.end(lifecycle.RunFailed, lifecycle.FailModelError, "The model asked for more than "+strconv.Itoa(maxCalls)+" calls in one turn.")
		return
	case c.s.Steps+len(calls) > c.s.Agent.Manifest.Limits.MaxSteps:
		c.overSteps()
		return
	case c.overHistory():
		return
	case c.s.Handoffs >= maxHandoffs && slices.ContainsFunc(m.Plan, func(p tool.Planned) bool { return p.Handoff && p.Refused == nil }):
		c.limit("handoffs", strconv.Itoa(maxHandoffs))
		return
	}
	c.s.Calls, c.own = make([]*Call, 0, len(calls)), true
	handoff := false
	for i := range calls {
		p := ungranted(&calls[i])
		if m.Plan != nil {
			p = m.Plan[i]
		}
		if p.Handoff && p.Refused == nil {
			if handoff {
				p.Refused = &secondHandoff
			}
			handoff = true
		}
		c.beginCall(m.Result, &calls[i], p)
	}
	c.say(m.Result.Message())
	c.advance()
}

// ungranted returns the plan of a call by an agent without tools: it is refused
// (open-parts.md, Tools).
func ungranted(call *model.Call) tool.Planned {
	name := problem.CutBytes(call.Name, maxName)
	out := tool.FailedResult(tool.ErrNotGranted, "The tool "+strconv.Quote(name)+" is not granted to this agent. Nothing was run.")
	return tool.Planned{CallID: call.ID, Tool: name, Shown: shownArgs(call), Refused: &out}
}

// beginCall begins the step of one call. Its receipt, the number of tool.called,
// is committed before anything is sent.
func (c *change) beginCall(r *model.Result, call *model.Call, p tool.Planned) {
	k := &Call{Idx: c.s.Steps, Kind: lifecycle.StepTool, Status: lifecycle.StepRunning, Plan: p}
	switch {
	case p.Handoff:
		k.Kind = lifecycle.StepHandoff
	case p.Retrieval:
		k.Kind = lifecycle.StepRetrieval
	}
	k.Plan.CallID = call.ID
	c.s.Steps++
	k.Began = c.seq()
	began := StepBegan{Idx: k.Idx, Kind: k.Kind, Name: problem.CutBytes(p.Tool, maxName), Input: p.Shown, Seq: k.Began}
	switch gated := p.Refused == nil && p.Terms != nil; {
	case gated:
		k.Status, k.Reasoning = lifecycle.StepWaiting, reasoning(r)
		if s := p.Skill; s != nil && s.Reason != "" {
			k.Reasoning = s.Reason
		}
	case k.Kind == lifecycle.StepHandoff:
	case p.Refused == nil && (c.leaving || k.joins()):
		k.Status = lifecycle.StepWaiting // for the run's next node, or for another call
	default:
		began.Called = c.seq()
	}
	began.Status = k.Status
	if p.Refused == nil {
		began.call = k
	}
	c.s.Calls = append(c.s.Calls, k)
	c.fact(began)
	if p.Refused != nil {
		c.endCall(len(c.s.Calls)-1, *p.Refused)
	}
}

// call returns a copy of call i that this decision may change.
func (c *change) call(i int) *Call {
	if !c.own {
		c.s.Calls, c.own = slices.Clone(c.s.Calls), true
	}
	k := *c.s.Calls[i]
	c.s.Calls[i] = &k
	return &k
}

// endCall ends a call's step with the result for the model. The end of a handoff has no
// frame.
func (c *change) endCall(i int, out tool.Outcome) *Call {
	k := c.call(i)
	k.Status = lifecycle.StepSucceeded
	if out.IsError {
		k.Status = lifecycle.StepFailed
	}
	result := model.CallResult{CallID: k.Plan.CallID, Content: out.Content, IsError: out.IsError}
	e := StepEnded{
		Idx: k.Idx, Kind: k.Kind, Status: k.Status, Output: out.Shown,
		History: c.heard(model.Message{Role: model.Tool, Text: k.Said, Results: []model.CallResult{result}}),
	}
	if c.s.Known {
		k.Result = result
	}
	switch k.Kind {
	case lifecycle.StepTool:
		e.Seq = c.seq()
	case lifecycle.StepRetrieval:
		e.Seq = c.retrievalSeq(out)
	}
	c.fact(e)
	return k
}

func (c *change) toolAnswered(m ToolAnswered) bool {
	i := c.s.calls(m.Idx)
	if i < 0 || c.s.Calls[i].Kind == lifecycle.StepHandoff {
		return false
	}
	c.called(i, m.Outcome)
	return true
}

// callFailed ends the call whose effect panicked. It may have been sent.
func (c *change) callFailed(key string) bool {
	for _, k := range c.s.Calls {
		if key == previewKey(k.Idx) {
			return c.previewed(Previewed{Idx: k.Idx, Outcome: &lostPreview})
		}
	}
	i := slices.IndexFunc(c.s.Calls, func(k *Call) bool { return key == k.key() })
	if i < 0 || c.s.calls(c.s.Calls[i].Idx) < 0 {
		return false
	}
	if c.s.Calls[i].Kind == lifecycle.StepHandoff {
		c.called(i, lostHandoff)
	} else {
		c.called(i, tool.UnknownOutcome)
	}
	return true
}

// called ends a call and does what its turn allows next.
func (c *change) called(i int, out tool.Outcome) {
	c.clock()
	c.endCall(i, out)
	if !c.overTime() && !c.overHistory() {
		c.advance()
	}
}

// handedOver ends a handoff: another agent speaks from here on.
func (c *change) handedOver(m HandedOver) bool {
	i := c.s.calls(m.Idx)
	if i < 0 || c.s.Calls[i].Kind != lifecycle.StepHandoff {
		return false
	}
	c.clock()
	c.endCall(i, m.Outcome)
	if m.Agent != nil {
		c.fact(Handoff{From: m.From, To: m.To, Seq: c.seq()})
		c.s.Speaker, c.s.SpeakerVersion, c.s.Agent = m.AgentID, m.Version, m.Agent
		c.s.Handoffs++
	}
	if !c.overTime() {
		c.advance()
	}
	return true
}

// advance begins what the turn's calls allow next. The ungated calls run first. When the last
// of them has ended, the approvals of all gated calls open together. When no call is
// open, the model gets the results.
func (c *change) advance() {
	running, unbegun, waiting, handoff := 0, 0, 0, 0
	for i, k := range c.s.Calls {
		waits := k.joins() && c.s.opens(k.Plan.Skill.Run)
		if k.unbegun() && !c.leaving && !waits {
			k = c.beginNow(i)
		}
		switch {
		case k.previews():
			running++
		case k.unbegun() && waits: // another call is open, and counts
		case k.unbegun():
			unbegun++
		case k.Status == lifecycle.StepWaiting:
			waiting++
		case k.Status != lifecycle.StepRunning:
		case k.Kind == lifecycle.StepHandoff:
			handoff++
		default:
			running++
		}
	}
	switch {
	case running > 0:
	case unbegun > 0: // they run first, on another node
	case waiting > 0:
		c.wait()
	case handoff > 0:
	default:
		c.tellModel()
	}
}

// unbegun reports whether the call is ungated and has not begun, because its turn ended on a
// node that the run was leaving.
func (k *Call) unbegun() bool {
	return k.Status == lifecycle.StepWaiting && k.Kind != lifecycle.StepHandoff && k.Plan.Terms == nil
}

// previews reports whether something comes before the approval of the call, and has not ended.
func (k *Call) previews() bool {
	return k.Status == lifecycle.StepWaiting && k.Plan.Terms != nil && k.Plan.Skill != nil && k.Plan.Skill.Previews && k.Approval == nil && !k.Previewed
}

// joins reports whether an earlier call of the turn makes the run of the same browser skill.
func (k *Call) joins() bool { return k.Plan.Skill != nil && k.Plan.Skill.Joins }

// opens reports whether the call that makes a run of a browser skill has not ended.
func (s *State) opens(run id.SkillRunID) bool {
	return slices.ContainsFunc(s.Calls, func(k *Call) bool {
		return k.Plan.Skill != nil && k.Plan.Skill.Run == run && !k.Plan.Skill.Joins && (k.Status == lifecycle.StepRunning || k.Status == lifecycle.StepWaiting)
	})
}

// previewing returns the index in Calls of step idx if something comes before its approval, else
// -1.
func (s *State) previewing(idx int) int {
	if s.Status != lifecycle.RunRunning {
		return -1
	}
	return slices.IndexFunc(s.Calls, func(k *Call) bool { return k.Idx == idx && k.previews() })
}

// previewed ends what comes before an approval. The approval opens with those of the other calls
// of the turn, or the call ends.
func (c *change) previewed(m Previewed) bool {
	i := c.s.previewing(m.Idx)
	if i < 0 {
		return false
	}
	if m.Outcome != nil {
		c.fact(SkillsLeft{[]id.SkillRunID{c.s.Calls[i].Plan.Skill.Run}}) // the skill's run may go on, or wait for people who are never asked
		c.called(i, *m.Outcome)
		return true
	}
	c.clock()
	c.call(i).Previewed = true
	if !c.overTime() {
		c.advance()
	}
	return true
}

// beginNow begins a call that did not begin with its turn.
func (c *change) beginNow(i int) *Call {
	k := c.call(i)
	k.Status = lifecycle.StepRunning
	c.fact(StepCalled{Call: k, Called: c.seq()})
	return k
}

// wait opens the approvals of the turn's gated calls, and waits. This commit is the
// checkpoint before any of them is called.
func (c *change) wait() {
	for i, k := range c.s.Calls {
		if k.Status != lifecycle.StepWaiting || k.Plan.Terms == nil {
			continue
		}
		k = c.call(i)
		// To the microsecond, as stored: frame and row agree.
		expires := c.now.Add(k.Plan.Terms.SLA()).Truncate(time.Microsecond)
		k.Approval = &Approval{Status: lifecycle.ApprovalPending, OnTimeout: k.Plan.Terms.OnTimeout, Assignee: k.Plan.Terms.Role, ExpiresAt: expires}
		c.fact(Asked{Call: k, Seq: c.seq(), Expires: expires})
	}
	c.s.Status = lifecycle.RunWaitingApproval
	c.fact(Waits{Seq: c.seq()})
}

// resumeDecided resumes a waiting run once all its approvals are decided. If one of them
// has expired whose policy says so, it ends the run.
func (c *change) resumeDecided() bool {
	if c.leaving || c.s.Status != lifecycle.RunWaitingApproval {
		return false
	}
	pending, expired := false, false
	for _, k := range c.s.Calls {
		if a := k.Approval; k.Status == lifecycle.StepWaiting && a != nil {
			pending = pending || !a.Status.Terminal()
			expired = expired || a.endsRun()
		}
	}
	switch {
	case expired:
		c.end(lifecycle.RunCancelled, lifecycle.FailExpired, "An approval expired.")
	case pending:
		return false
	default:
		c.resume()
	}
	return true
}

// endsRun reports whether the approval has expired and ends its run.
func (a *Approval) endsRun() bool {
	return a.Status == lifecycle.ApprovalExpired && a.OnTimeout == agent.TimeoutCancelRun
}

// resume continues a run whose approvals are all decided.
func (c *change) resume() {
	if c.s.Agent == nil || c.s.Damage != "" {
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
		return
	}
	for _, k := range c.s.Calls {
		if k.gated() && !k.sound() {
			c.end(lifecycle.RunFailed, lifecycle.FailInternal, "The arguments of a call are not those that were approved. Nothing was run.")
			return
		}
	}
	c.s.Status, c.s.Since = lifecycle.RunRunning, c.now
	for _, k := range c.s.Calls {
		if k.gated() {
			c.fact(Resumed{Approval: *k.Plan.Approval, Decision: k.Approval.Decision, Seq: c.seq()})
		}
	}
	for i, k := range c.s.Calls {
		if k.gated() {
			c.applyDecision(i)
		}
	}
	c.advance()
}

// gated reports whether the call waits for its approval.
func (k *Call) gated() bool { return k.Status == lifecycle.StepWaiting && k.Plan.Terms != nil }

// sound reports whether the arguments of a decided call are those that were approved.
func (k *Call) sound() bool {
	if k.Approval == nil || k.Plan.Approval == nil {
		return false
	}
	switch k.Approval.Status {
	case lifecycle.ApprovalApproved, lifecycle.ApprovalEdited:
		return tool.Digest(k.decidedArgs()) == k.Approval.Digest
	case lifecycle.ApprovalRejected, lifecycle.ApprovalResponded, lifecycle.ApprovalExpired:
		return true
	}
	return false
}

// decidedArgs returns the arguments of a decided call.
func (k *Call) decidedArgs() json.RawMessage {
	if k.Approval.Status == lifecycle.ApprovalEdited {
		return k.Approval.Edited
	}
	return k.Plan.Args
}

// applyDecision begins or ends call i as its approval says.
func (c *change) applyDecision(i int) {
	k := c.call(i)
	a := k.Approval
	switch a.Status {
	case lifecycle.ApprovalApproved, lifecycle.ApprovalEdited:
		k.Status = lifecycle.StepRunning
		f := StepCalled{Call: k, Edited: a.Status == lifecycle.ApprovalEdited}
		if f.Edited {
			k.Plan.Args, k.Plan.Shown = a.Edited, tool.KeepKey(a.Shown, k.Plan.Shown)
		}
		if k.Kind != lifecycle.StepHandoff {
			f.Called = c.seq()
		}
		c.fact(f)
	case lifecycle.ApprovalResponded:
		if k.Plan.DecidesOn() != nil { // service.md, Browser skill run outcomes
			c.endCall(i, rejected(a.Feedback))
			return
		}
		k.Said = a.Feedback
		c.endCall(i, responded)
	case lifecycle.ApprovalExpired:
		c.endCall(i, rejected("expired"))
	default:
		c.endCall(i, rejected(a.Feedback))
	}
}

// resumeCalls continues with the calls that an older epoch began. One that may be sent
// again is owed again, under the same key; the outcome of any other is unknown
// (open-parts.md, Tools).
func (c *change) resumeCalls() {
	for i, k := range c.s.Calls {
		if k.Status == lifecycle.StepRunning && k.Kind != lifecycle.StepHandoff && !k.Plan.Repeat {
			c.endCall(i, tool.UnknownOutcome)
		}
	}
	c.advance()
}

// tellModel gives the model the results of its calls, in call order.
func (c *change) tellModel() {
	if c.s.Known {
		results := make([]model.CallResult, len(c.s.Calls))
		var said []string
		for i, k := range c.s.Calls {
			results[i] = k.Result
			if k.Said != "" {
				said = append(said, k.Said)
			}
		}
		c.say(heard(results, said)...)
	}
	c.s.Calls, c.own = nil, false
	c.ask()
}

// dropCalls ends the open calls of a run that ends, and withdraws their approvals.
func (c *change) dropCalls() {
	var asked []*Call
	var skills []id.SkillRunID
	for i, k := range c.s.Calls {
		if k.Status != lifecycle.StepRunning && k.Status != lifecycle.StepWaiting {
			continue
		}
		e := StepEnded{Idx: k.Idx, Kind: k.Kind, Status: lifecycle.StepFailed}
		if k.Status == lifecycle.StepRunning {
			e.Output = cutCall
		}
		if k.Approval != nil && k.Status == lifecycle.StepWaiting && k.Plan.Approval != nil {
			asked = append(asked, k)
		}
		if k.Plan.Skill != nil && !k.joins() {
			skills = append(skills, k.Plan.Skill.Run)
		}
		c.call(i).Status = lifecycle.StepFailed
		c.fact(e)
	}
	c.s.Calls, c.own = nil, false
	if len(skills) > 0 {
		c.fact(SkillsLeft{skills})
	}
	if len(asked) > 0 {
		c.fact(Withdrawn{Calls: asked})
	}
}

// timerDue handles the timer that a decided approval sets, which is named by its id. The
// timer is done unless the approval was read as pending. On a node that the run leaves it
// stays: it comes due again where the run goes on.
func (c *change) timerDue(name string) bool {
	switch {
	case c.leaving:
		return false
	case c.resumeDecided():
		return true
	}
	u, err := id.Parse(name)
	if err != nil {
		return false
	}
	approval := id.ApprovalID{UUID: u}
	for _, k := range c.s.Calls {
		if k.Plan.Approval != nil && *k.Plan.Approval == approval && k.Approval != nil && !k.Approval.Status.Terminal() {
			return false
		}
	}
	c.fact(TimerDone{Approval: approval})
	return true
}
