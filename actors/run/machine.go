package run

import (
	"errors"
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Machine decides for agent runs.
type Machine struct {
	// Slots says that a run needs a slot of its tenant.
	Slots bool
}

type decision = durable.Decision[State]

// Decide returns what m changes. doc.go has a drawing of the statuses. Each handler
// reports whether the message changes anything; one that comes too late changes nothing.
func (mc Machine) Decide(s State, m any, now time.Time) (decision, error) {
	c := &change{s: s, now: now}
	if l, ok := m.(durable.Leaving); ok {
		m, c.leaving = l.Msg, true
	}
	if s.Status == "" {
		return create(s, m, now)
	}
	var changed bool
	var err error
	switch m := m.(type) {
	case durable.Activated:
		changed = c.activated()
	case msg.StartOne: // accepted before
		c.reply = msg.Started{Run: s.ID}
	case msg.Proceed:
		changed = c.proceed(mc.Slots && s.Parent == nil)
	case msg.SlotGranted:
		changed = c.slotGranted()
	case ModelAnswered:
		changed = c.modelAnswered(m)
	case ModelFailed:
		changed = c.modelFailed(m)
	case Retrieved:
		changed = c.retrieved(m)
	case ToolAnswered:
		changed = c.toolAnswered(m)
	case Previewed:
		changed = c.previewed(m)
	case HandedOver:
		changed = c.handedOver(m)
	case Delivered:
		changed = c.delivered(m)
	case TimeUp:
		changed = c.timeUp(m)
	case msg.ApprovalsDecided, durable.Wake:
		changed = c.resumeDecided()
	case durable.TimerDue:
		changed = c.timerDue(m.Name)
	case msg.CancelRun:
		changed = c.cancel()
	case durable.EffectFailed:
		changed = c.effectFailed(m.Key)
	case durable.Refused:
		changed, err = c.refused(m.Msg)
	}
	switch {
	case err != nil:
		return decision{}, err
	case !changed:
		return decision{Next: s, Reply: c.reply}, nil
	}
	return decision{Next: c.s, Changed: true, Facts: c.facts, Reply: c.reply}, nil
}

// Owed returns what the run waits for: a slot while it is queued and ready, the answer of the
// model while a model step is open, the search of evidence while its step is, the answers of
// the calls that run. A run that waits
// for people owes nothing.
func (Machine) Owed(s State) []durable.Effect {
	switch s.Status {
	case lifecycle.RunQueued:
		if s.Ready {
			return []durable.Effect{AcquireSlot{Run: s.ID, CreatedAt: s.CreatedAt, Child: s.Parent != nil}}
		}
	case lifecycle.RunRunning:
		if s.Open != nil && s.Open.Kind == lifecycle.StepLLM && s.Agent != nil {
			return []durable.Effect{ModelCall{Idx: s.Open.Idx, Seq: s.Open.Seq, Until: s.deadline(), Of: &s}}
		}
		if s.Open != nil && s.Open.Kind == lifecycle.StepRetrieval && s.Agent != nil {
			return []durable.Effect{Retrieve{Idx: s.Open.Idx, Until: s.deadline(), Of: &s}}
		}
		if len(s.Calls) > 0 && s.Agent != nil {
			return owedCalls(&s)
		}
		if s.Delivers && s.Agent != nil {
			return owedDelivery(&s)
		}
	}
	return nil
}

const internalMessage = "The run could not go on because of an internal error."

// errNoAgent is a programmer's error.
var errNoAgent = errors.New("run: begun without an agent")

// create accepts a run without a thread.
func create(s State, m any, now time.Time) (decision, error) {
	if refused, ok := m.(durable.Refused); ok {
		if _, starting := refused.Msg.(msg.StartOne); starting {
			return decision{}, problem.Invalid("input", "cannot be stored")
		}
	}
	start, ok := m.(msg.StartOne)
	switch {
	case !ok:
		return decision{}, problem.NotFound("run")
	case s.Unread:
		return decision{}, problem.Unavailable("The agent's version could not be read.", time.Second)
	}
	s.AgentID, s.AgentVersion = start.AgentID, start.AgentVersion
	s.Input, s.Origin, s.EndUserID = start.Input, start.Origin, start.EndUserID
	s.Status, s.CreatedAt, s.Known = lifecycle.RunQueued, now, true
	s.Ready = true // a run without a thread waits for no other run
	return decision{Next: s, Changed: true, Facts: []any{Created{}}, Reply: msg.Started{Run: s.ID}}, nil
}

func (s *State) waitsFor(idx int) bool {
	return s.Status == lifecycle.RunRunning && s.Open != nil && s.Open.Idx == idx
}

// change is a decision in the making.
type change struct {
	s     State
	now   time.Time
	facts []any
	reply any
	own   bool // s.Calls is this decision's own
	// leaving: the run continues on another node, and begins nothing here.
	leaving bool
}

func (c *change) fact(f any) { c.facts = append(c.facts, f) }

func (c *change) seq() int64 {
	c.s.Seq++
	return c.s.Seq
}

// clock adds the time since the last decision to the running time. max_seconds
// counts time in status running only, the sum over all activations: the time between a
// crash and the next activation does not count, nor does a step of the clock (shift).
func (c *change) clock() {
	if c.s.Status == lifecycle.RunRunning && !c.s.Since.IsZero() {
		c.s.Ran += max(0, c.now.Sub(c.s.Since))
	}
	c.s.Since = c.now
}

// proceed notes that no earlier run of the thread is open.
func (c *change) proceed(slots bool) bool {
	if c.leaving || c.s.Status != lifecycle.RunQueued || slots && c.s.Ready {
		return false
	}
	if slots {
		c.s.Ready = true
	} else {
		c.start()
	}
	return true
}

func (c *change) slotGranted() bool {
	if c.leaving || c.s.Status != lifecycle.RunQueued || !c.s.Ready {
		return false
	}
	c.start()
	return true
}

// start begins a queued run and its first step.
func (c *change) start() {
	c.run()
	if c.s.Agent == nil || c.s.Damage != "" {
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
		return
	}
	c.ask()
}

func (c *change) run() {
	now := c.now
	c.s.Status, c.s.StartedAt, c.s.Since = lifecycle.RunRunning, &now, now
	c.seq() // event.SeqStarted
	c.fact(Began{})
}

// activated resumes a running run: what an older epoch began has no owner. An open model
// step is abandoned, and a new one begins; calls are sent again if they are idempotent. A
// waiting run decides nothing here: the message that activated it may be its cancel.
func (c *change) activated() bool {
	if c.s.Status != lifecycle.RunRunning {
		return false
	}
	c.s.Since = c.now
	if c.s.Open != nil {
		c.cutOff(lifecycle.StepAbandoned)
	}
	switch {
	case c.s.Agent == nil, c.s.Damage != "":
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
	case c.overTime():
	case len(c.s.Calls) > 0:
		c.resumeCalls()
	case c.s.Delivers: // the file is owed, and nothing else
	default:
		c.ask()
	}
	return true
}

// ask begins a model step, or the search that evidence asks for before the first one, unless
// the run is leaving: the next activation finds it running
// with no open step, and asks.
func (c *change) ask() {
	if c.s.Agent == nil {
		panic(errNoAgent)
	}
	if c.overHistory() || c.leaving {
		return
	}
	if c.s.Steps >= c.s.Agent.Manifest.Limits.MaxSteps {
		c.overSteps()
		return
	}
	if c.s.owesEvidence() {
		c.retrieve()
		return
	}
	m := c.s.Agent.Manifest.Model
	step := StepBegan{Idx: c.s.Steps, Kind: lifecycle.StepLLM, Name: m.Name, Status: lifecycle.StepRunning, Input: showModel(m), Seq: c.seq()}
	c.s.Steps++
	c.s.Open = &OpenStep{Idx: step.Idx, Kind: step.Kind, Seq: step.Seq}
	c.fact(step)
}

// endStep ends the open step.
func (c *change) endStep(e StepEnded) {
	e.Idx, e.Kind = c.s.Open.Idx, c.s.Open.Kind
	c.s.Open = nil
	c.s.TokensIn += e.TokensIn
	c.s.TokensOut += e.TokensOut
	c.s.CostUSD += e.CostUSD
	c.fact(e)
}

// cutOff ends the open step without an answer: as abandoned if another step replaces it, else
// as failed. Its output is the text so far.
func (c *change) cutOff(status lifecycle.StepStatus) {
	c.endStep(StepEnded{Status: status, Cut: true})
}

func (c *change) modelAnswered(m ModelAnswered) bool {
	if !c.s.waitsFor(m.Idx) {
		return false
	}
	c.clock()
	r := m.Result
	e := StepEnded{
		Status: lifecycle.StepSucceeded, Output: showTurn(r, m.Plan), Segments: m.Segments,
		TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: m.Price.Cost(r.TokensIn, r.TokensOut), Estimated: r.Estimated,
	}
	declined := r.Finish == model.FinishFilter
	if declined {
		e.Status = lifecycle.StepFailed
	}
	again := !declined && len(r.Calls) == 0 && !c.s.AskedAgain && c.s.uncited(m.Verdict)
	if len(r.Calls) > 0 || again || deliverableOf(c.s.Input) != "" {
		e.History = c.heard(r.Message())
	}
	c.endStep(e)
	c.s.Retried = false
	if c.s.FirstText == 0 && !m.Heard.IsZero() {
		c.s.FirstText = max(m.Heard.Sub(c.s.CreatedAt), time.Millisecond)
	}
	switch {
	case c.overUse(), c.overTime():
	case declined && r.Text == "":
		c.end(lifecycle.RunFailed, lifecycle.FailModelError, "The model declined to answer.")
	case declined: // a part of an answer is none, and what it began to call may be a part too
		c.end(lifecycle.RunFailed, lifecycle.FailModelError, "The model declined to go on.")
	case len(r.Calls) > 0:
		c.begin(&m)
	case again:
		c.askAgain(r)
	case r.Finish == model.FinishLength && deliverableOf(c.s.Input) != "":
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, cannotDeliver+": the answer was cut off at the model's limit of output.")
	default:
		c.finish(m.Verdict)
	}
	return true
}

// finish ends the run with the verdict on the model's final text.
func (c *change) finish(v *Verdict) {
	switch {
	case v == nil: // an unchecked text is no output
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
		return
	case v.Late:
		c.s.Ran = max(c.s.Ran, c.s.maxTime())
		c.overTime()
		return
	case v.Reason != "":
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, v.Reason)
		return
	case c.s.uncited(v):
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, uncitedMessage)
		return
	}
	c.succeed(v)
}

func (c *change) modelFailed(m ModelFailed) bool {
	if !c.s.waitsFor(m.Idx) {
		return false
	}
	c.clock()
	status := lifecycle.StepFailed
	again := m.Interrupted || m.Broken && !c.s.Retried
	if again {
		status = lifecycle.StepAbandoned
	}
	c.endStep(StepEnded{
		Status: status, Cut: true, Failure: m.Message,
		TokensIn: m.TokensIn, TokensOut: m.TokensOut, CostUSD: m.Price.Cost(m.TokensIn, m.TokensOut), Estimated: m.TokensIn+m.TokensOut > 0,
	})
	switch {
	case c.overUse(), c.overTime():
	case again:
		c.s.Retried = c.s.Retried || !m.Interrupted
		c.ask()
	default:
		c.end(lifecycle.RunFailed, m.Code, m.Message)
	}
	return true
}

// timeUp ends the run. It trusts the clock of the effect, which may differ slightly from
// this one.
func (c *change) timeUp(m TimeUp) bool {
	if !c.s.waitsFor(m.Idx) && c.s.calls(m.Idx) < 0 && c.s.previewing(m.Idx) < 0 {
		return false
	}
	c.clock()
	c.s.Ran = max(c.s.Ran, c.s.maxTime())
	if c.s.Open != nil {
		c.cutOff(lifecycle.StepFailed)
	}
	c.overTime()
	return true
}

// cancel ends the run on request. A second request gets the status.
func (c *change) cancel() bool {
	open := !c.s.Status.Terminal()
	if open {
		c.clock()
		if c.s.Open != nil {
			c.cutOff(lifecycle.StepFailed)
		}
		c.fact(Stopped{})
		c.end(lifecycle.RunCancelled, lifecycle.FailCancelled, "The run was cancelled.")
	}
	c.reply = msg.Status{Run: c.s.ID, Status: c.s.Status}
	return open
}

// refused ends a run whose rows the database refuses, without these rows. The usage is billed
// all the same. A cancel cannot be done without its rows.
func (c *change) refused(m any) (bool, error) {
	if _, ok := m.(msg.CancelRun); ok {
		return false, problem.New(problem.CodeInternal, "")
	}
	if c.s.Status.Terminal() {
		return false, nil
	}
	c.clock()
	if c.s.Status == lifecycle.RunQueued {
		c.run()
	}
	if c.s.Open != nil {
		e := StepEnded{Status: lifecycle.StepFailed}
		if a, ok := m.(ModelAnswered); ok && c.s.waitsFor(a.Idx) {
			e.TokensIn, e.TokensOut, e.Estimated = a.Result.TokensIn, a.Result.TokensOut, a.Result.Estimated
			e.CostUSD = a.Price.Cost(e.TokensIn, e.TokensOut)
		}
		c.endStep(e)
	}
	c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
	return true, nil
}

// effectFailed ends a step whose effect panicked.
func (c *change) effectFailed(key string) bool {
	if c.s.Open != nil && (key == (ModelCall{Idx: c.s.Open.Idx}).Key() || key == retrieveKey(c.s.Open.Idx)) {
		c.clock()
		c.cutOff(lifecycle.StepFailed)
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
		return true
	}
	if c.s.Delivers && key == deliverKey {
		return c.delivered(Delivered{})
	}
	return c.callFailed(key)
}

// end makes the run terminal without an answer, and ends its open calls.
func (c *change) end(status lifecycle.RunStatus, code lifecycle.Failure, message string) {
	if len(c.s.Calls) > 0 {
		c.dropCalls()
	}
	c.s.Delivers, c.s.Final = false, nil
	now := c.now
	c.s.Status, c.s.FinishedAt, c.s.Error = status, &now, &Failure{Code: code, Message: message}
	c.seq()
	c.fact(Ended{})
}

// Limits (open-parts.md, Manifest): a run that passes one fails. These functions report
// whether they ended the run.

func (c *change) overSteps() {
	c.limit("max_steps", strconv.Itoa(c.s.Agent.Manifest.Limits.MaxSteps))
}

func (c *change) overTime() bool {
	if c.s.Ran < c.s.maxTime() {
		return false
	}
	c.limit("max_seconds", strconv.Itoa(c.s.Agent.Manifest.Limits.MaxSeconds))
	return true
}

func (c *change) overUse() bool {
	l := c.s.Agent.Manifest.Limits
	switch {
	case l.MaxTokens > 0 && c.s.TokensIn+c.s.TokensOut > l.MaxTokens:
		c.limit("max_tokens", strconv.FormatInt(l.MaxTokens, 10))
	case l.MaxCostUSD > 0 && c.s.CostUSD > l.MaxCostUSD:
		c.limit("max_cost_usd", strconv.FormatFloat(l.MaxCostUSD, 'f', -1, 64))
	default:
		return false
	}
	return true
}

// overHistory looks at what this activation has heard. What was said before is counted where
// it is read.
func (c *change) overHistory() bool {
	if c.s.Heard <= maxHistory {
		return false
	}
	c.limit("history", historyLimit)
	return true
}

func (c *change) limit(name, value string) {
	c.end(lifecycle.RunFailed, lifecycle.FailLimitExceeded, passed(name, value))
}

func passed(name, value string) string {
	return "The run passed its limit " + name + " of " + value + "."
}
