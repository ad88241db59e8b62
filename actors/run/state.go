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

// State is what a run is: its row, what its row's state column keeps, its open
// steps, and what can be read again at any time. The zero Status means that no
// such run has been accepted.
type State struct {
	Tenant id.TenantID
	ID     id.RunID

	AgentID      id.AgentID
	AgentVersion int
	ThreadID     *id.ThreadID
	ThreadSeq    int64     // of the message that asked; the reply's is the next
	Parent       *id.RunID // of the child run of a workflow's node
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

	Open *OpenStep // the model's step that has begun and not ended
	// Calls are the calls of the present turn, in call order; none while the model
	// is asked. After an activation those that ended before are not among them.
	Calls []*Call

	// Since is the moment up to which Ran counts; it belongs to the activation.
	Since time.Time
	// Agent is the version that speaks, nil when it cannot be run: the one that the
	// run is pinned to, until it hands the conversation over.
	Agent *Agent
	// Damage says what of the run's rows could not be read, empty where all could:
	// such a run can only fail or be cancelled.
	Damage string
	// Unread says that the version could not be looked up: the run is not accepted.
	Unread bool
	// Said is what model and tools said in this run, in order. It is valid where
	// Known; after an activation it is read from the sealed steps.
	Said  []model.Message
	Known bool
}

// Failure is why a run ended badly.
type Failure struct {
	Code    lifecycle.Failure
	Message string
}

// OpenStep is a model's step that has begun and not ended.
type OpenStep struct {
	Idx  int
	Kind lifecycle.StepKind
	Seq  int64 // of its step.started
}

// Call is one call of a turn: a step of its own, of kind tool or handoff. What
// stands in a State is not changed any more.
type Call struct {
	Idx    int
	Kind   lifecycle.StepKind
	Began  int64                // number of its step.started
	Status lifecycle.StepStatus // running or waiting, and then as it ended
	Plan   tool.Planned
	// Reasoning is why the model wants it, for those who decide on it.
	Reasoning string
	// Approval is set on a call that waits once its approval is open.
	Approval *Approval
	// Result is what the model hears, once the call has ended, and Said what a
	// person says to it behind the results of the turn.
	Result model.CallResult
	Said   string
}

// Approval is what became of a call's approval, as it was read when the run was
// activated. A pending one may be decided by now.
type Approval struct {
	Status   lifecycle.ApprovalStatus
	Decision lifecycle.Action
	Feedback string
	// Edited are the arguments to call where the status is edited, nil where they
	// could not be opened. Of a pending one they are the latest edit so far.
	Edited json.RawMessage
	// Shown are they as their editor sent them: what the editor was not shown is
	// not shown now.
	Shown     json.RawMessage
	Digest    [32]byte // of the arguments to call
	OnTimeout string
	// Assignee is who decides, since it was escalated the higher role.
	Assignee  lifecycle.Role
	ExpiresAt time.Time
	// Version and Epoch are those of its row.
	Version, Epoch int64
}

// Agent is one version of an agent, ready to run. It is shared and immutable.
type Agent struct {
	Manifest *agent.Manifest
	Rules    *guardrail.Rules
}

// Kept is what the row's state column says and no other does.
type Kept struct {
	Turn    bool          // the run may run as soon as it has a slot
	Ran     time.Duration // in status running, added up over activations
	Retried bool          // the model's present turn has had its second try
	// Speaker is the agent that speaks since the last handoff, zero before one.
	Speaker        id.AgentID
	SpeakerVersion int
	Handoffs       int // so far
}

// kept is the codec of Kept, version 1.
type kept struct {
	V        int        `json:"v"`
	Turn     bool       `json:"turn,omitempty"`
	RanMS    int64      `json:"ran_ms,omitempty"`
	Retried  bool       `json:"retried,omitempty"`
	Speaker  id.AgentID `json:"speaker,omitzero"`
	Version  int        `json:"speaker_version,omitempty"`
	Handoffs int        `json:"handoffs,omitempty"`
}

const keptVersion = 1

// Encode is the state column's value, nil when there is nothing to say.
func (k Kept) Encode() []byte {
	if k == (Kept{}) {
		return nil
	}
	b, err := json.Marshal(kept{
		V: keptVersion, Turn: k.Turn, RanMS: k.Ran.Milliseconds(), Retried: k.Retried,
		Speaker: k.Speaker, Version: k.SpeakerVersion, Handoffs: k.Handoffs,
	})
	if err != nil {
		panic(err) // plain fields always encode
	}
	return b
}

// errDamaged says that a value of a run can never be read again.
var errDamaged = errors.New("the value is damaged")

// DecodeKept reads a state column. A version that came later is an error: a run
// of a newer release is not for this one.
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
		Turn: k.Turn, Ran: time.Duration(k.RanMS) * time.Millisecond, Retried: k.Retried,
		Speaker: k.Speaker, SpeakerVersion: k.Version, Handoffs: k.Handoffs,
	}, nil
}

// FromAccepted is the state of a run as its thread has just committed it. The error is
// that of DecodeKept.
func FromAccepted(tenant id.TenantID, a *msg.Accepted, ag *Agent) (State, error) {
	kept, err := DecodeKept(a.State)
	if err != nil {
		return State{}, err
	}
	return State{
		Tenant: tenant, ID: a.Run, AgentID: a.AgentID, AgentVersion: a.AgentVersion, ThreadID: a.ThreadID, ThreadSeq: a.ThreadSeq,
		Input: a.Input, Origin: a.Origin, EndUserID: a.EndUserID, CreatedAt: a.CreatedAt,
		Status: lifecycle.RunQueued, Agent: ag, Kept: kept, Known: true,
	}, nil
}

// speaker is the agent whose turn it is, and its version.
func (s *State) speaker() (*id.AgentID, *int) {
	if s.Handoffs > 0 {
		return &s.Speaker, &s.SpeakerVersion
	}
	return &s.AgentID, &s.AgentVersion
}

// maxTime is how long the run may be in status running.
func (s *State) maxTime() time.Duration {
	return time.Duration(s.Agent.Manifest.Limits.MaxSeconds) * time.Second
}

// deadline is when the run's time is up, if it goes on running.
func (s *State) deadline() time.Time { return s.Since.Add(s.maxTime() - s.Ran) }
