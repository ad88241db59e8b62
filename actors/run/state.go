package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// State is a run: its row, the contents of its state column, its open steps, and values
// that can be read again at any time. The zero Status means that the run has not been
// accepted.
type State struct {
	Tenant id.TenantID
	ID     id.RunID

	AgentID      id.AgentID
	AgentVersion int
	ThreadID     *id.ThreadID
	ThreadSeq    int64     // of the run's message; the reply's is the next
	Parent       *id.RunID // of the child run of a workflow node
	Input        json.RawMessage
	Origin       msg.Origin
	EndUserID    *id.EndUserID
	CreatedAt    time.Time

	Status     lifecycle.RunStatus
	Output     json.RawMessage
	Error      *Failure
	TokensIn   int64
	TokensOut  int64
	CostUSD    float64
	StartedAt  *time.Time
	FinishedAt *time.Time
	Seq        int64 // facts so far
	Steps      int   // persisted steps
	Kept

	// Final is the accepted answer of a run that delivers. It belongs to the activation: nil
	// after a load.
	Final *Verdict

	Open *OpenStep // the step of the run's own that has begun and not ended
	// Calls are the calls of the current turn, in call order; none while the model
	// is asked. After an activation the calls that ended before are not among them.
	Calls []*Call

	// Since is the moment up to which Ran counts; it belongs to the activation.
	Since time.Time
	// Agent is the version that speaks: the one that the run is pinned to, until a
	// handoff. nil if it cannot be run.
	Agent *Agent
	// Damage says which of the run's rows could not be read; empty if all could. A
	// damaged run can only fail or be cancelled.
	Damage string
	// Unread says that the version could not be read: the run is not accepted.
	Unread bool
	// Said holds the messages of model and tools in this run, in order. It is valid if
	// Known. After an activation, and once it is large, it is read from the sealed steps.
	Said  []model.Message
	Known bool
	// Heard is the size of what model and tools said in this activation.
	Heard int
}

// Failure is why a run ended badly.
type Failure struct {
	Code    lifecycle.Failure
	Message string
}

// OpenStep is a model's step, or the search for evidence, that has begun and not ended.
type OpenStep struct {
	Idx  int
	Kind lifecycle.StepKind
	Seq  int64 // of its step.started
}

// Call is one call of a turn: a step of its own, of kind tool or handoff. A Call in a
// State is immutable.
type Call struct {
	Idx    int
	Kind   lifecycle.StepKind
	Began  int64                // number of its step.started
	Status lifecycle.StepStatus // running or waiting, then its terminal status
	Plan   tool.Planned
	// Reasoning is the model's reason for the call, for the people who decide on it.
	Reasoning string
	// Previewed says that what comes before the approval has ended. It belongs to the activation.
	Previewed bool
	// Again says that an earlier activation began the call, which may have taken effect.
	Again bool
	// Approval is set on a waiting call once its approval is open.
	Approval *Approval
	// Result is the result for the model, once the call has ended. Said is what a person
	// answered instead; it follows the results of the turn.
	Result model.CallResult
	Said   string
}

// Approval is a call's approval as it was read when the run was activated. A pending
// one may be decided by now.
type Approval struct {
	Status   lifecycle.ApprovalStatus
	Decision lifecycle.Action
	Feedback string
	// Edited are the arguments to call if the status is edited, nil if they
	// could not be opened.
	Edited json.RawMessage
	// Shown are the edited arguments as their editor sent them: values that were masked
	// for the editor stay masked.
	Shown     json.RawMessage
	Digest    [32]byte // of the arguments to call
	OnTimeout string
	// Assignee is the role that decides; after an escalation the higher role.
	Assignee  lifecycle.Role
	ExpiresAt time.Time
}

// Agent is one version of an agent, ready to run. It is shared and immutable.
type Agent struct {
	Manifest *agent.Manifest
	Rules    *guardrail.Rules
}

// Kept is the contents of the row's state column: what no other column says.
type Kept struct {
	Ready   bool          // no earlier run of its thread is open: it starts once it has a slot
	Ran     time.Duration // in status running, the sum over all activations
	Retried bool          // the current model turn has had its second try
	// Speaker is the agent that speaks since the last handoff, zero before the first.
	Speaker        id.AgentID
	SpeakerVersion int
	Handoffs       int // so far
	// Retrieved says that the search for evidence was made; AskedAgain that the model was asked
	// for an answer with citations a second time.
	Retrieved, AskedAgain bool
	// Delivers says that the final text is accepted, and its file not stored yet.
	Delivers bool
	// FirstText is how long after its acceptance the run's first text came; 0: none came yet.
	FirstText time.Duration
}

// firstText returns FirstText, nil if there was no text.
func (k Kept) firstText() *time.Duration {
	if k.FirstText == 0 {
		return nil
	}
	return &k.FirstText
}

// kept is the codec of Kept, version 1.
type kept struct {
	V        int        `json:"v"`
	Ready    bool       `json:"turn,omitempty"`
	RanMS    int64      `json:"ran_ms,omitempty"`
	Retried  bool       `json:"retried,omitempty"`
	Speaker  id.AgentID `json:"speaker,omitzero"`
	Version  int        `json:"speaker_version,omitempty"`
	Handoffs int        `json:"handoffs,omitempty"`

	Retrieved  bool `json:"retrieved,omitempty"`
	AskedAgain bool `json:"asked_again,omitempty"`
	Delivers   bool `json:"delivers,omitempty"` // persistence/feed reads it

	FirstTextMS int64 `json:"first_text_ms,omitempty"`
}

const keptVersion = 1

// Encode returns the state column's value, nil for the zero Kept.
func (k Kept) Encode() []byte {
	if k == (Kept{}) {
		return nil
	}
	b, err := json.Marshal(kept{
		V: keptVersion, Ready: k.Ready, RanMS: k.Ran.Milliseconds(), Retried: k.Retried,
		Speaker: k.Speaker, Version: k.SpeakerVersion, Handoffs: k.Handoffs,
		Retrieved: k.Retrieved, AskedAgain: k.AskedAgain, Delivers: k.Delivers, FirstTextMS: k.FirstText.Milliseconds(),
	})
	if err != nil {
		panic(err) // plain fields always encode
	}
	return b
}

// errDamaged says that a stored value of a run can never be read.
var errDamaged = errors.New("the value is damaged")

// DecodeKept reads a state column. A later version is an error: this release does not run
// the runs of a newer one.
func DecodeKept(b []byte) (Kept, error) {
	if len(b) == 0 {
		return Kept{}, nil
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return Kept{}, fmt.Errorf("read a run's state: %w: %w", errDamaged, err)
	}
	if k.V != keptVersion {
		return Kept{}, fmt.Errorf("read a run's state: version %d is not known here", k.V)
	}
	return Kept{
		Ready: k.Ready, Ran: time.Duration(k.RanMS) * time.Millisecond, Retried: k.Retried,
		Speaker: k.Speaker, SpeakerVersion: k.Version, Handoffs: k.Handoffs,
		Retrieved: k.Retrieved, AskedAgain: k.AskedAgain, Delivers: k.Delivers, FirstText: time.Duration(k.FirstTextMS) * time.Millisecond,
	}, nil
}

// FromAccepted returns the state of a run that its thread has just committed. The error is
// that of DecodeKept.
func FromAccepted(tenant id.TenantID, a *msg.Accepted, ag *Agent) (State, error) {
	kept, err := DecodeKept(a.State)
	if err != nil {
		return State{}, err
	}
	return State{
		Tenant: tenant, ID: a.Run, AgentID: a.AgentID, AgentVersion: a.AgentVersion, ThreadID: a.ThreadID, ThreadSeq: a.ThreadSeq,
		Parent: a.Parent, Input: a.Input, Origin: a.Origin, EndUserID: a.EndUserID, CreatedAt: a.CreatedAt,
		Status: lifecycle.RunQueued, Agent: ag, Kept: kept, Known: true,
	}, nil
}

// speaker returns the agent that speaks now, and its version.
func (s *State) speaker() (*id.AgentID, *int) {
	if s.Handoffs > 0 {
		return &s.Speaker, &s.SpeakerVersion
	}
	return &s.AgentID, &s.AgentVersion
}

// maxTime returns how long the run may be in status running.
func (s *State) maxTime() time.Duration {
	return time.Duration(s.Agent.Manifest.Limits.MaxSeconds) * time.Second
}

// shift is durable.Kind.Shift: a step of the clock is no running time.
func shift(s State, d time.Duration) State {
	if !s.Since.IsZero() {
		s.Since = s.Since.Add(d)
	}
	return s
}

// deadline returns when the run's time is up if it stays in status running.
func (s *State) deadline() time.Time { return s.Since.Add(s.maxTime() - s.Ran) }
