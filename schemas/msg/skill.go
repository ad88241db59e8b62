package msg

import (
	"encoding/json"

	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
)

// StartSkill begins a run of a browser skill. It is sent to the run itself. Replies SkillStands, or
// IN_USE if another run holds the key, or the skill or the agent's run is gone.
type StartSkill struct {
	Run   id.SkillRunID `json:"run"`
	Skill id.SkillID    `json:"skill"`
	Slug  string        `json:"slug"`
	// Taught is the revision of the definition that the values were checked against. A run of
	// another definition commits nothing.
	Taught int             `json:"taught"`
	Plan   skill.Plan      `json:"plan"`
	Key    string          `json:"key"`
	Values json.RawMessage `json:"values"` // by parameter
	Reason string          `json:"reason,omitempty"`
	// AgentRun is the run of the agent or workflow that called the tool, Agent the agent, nil for a
	// workflow, and Approval the id that the call's approval has or will have. All are nil for a dry
	// run by a person.
	AgentRun *id.RunID      `json:"agent_run,omitempty"`
	Agent    *id.AgentID    `json:"agent,omitempty"`
	Approval *id.ApprovalID `json:"approval,omitempty"`
	By       By             `json:"by"`
}

// Repeatable: the run identifies the StartSkill, and its row exists once it was begun.
func (StartSkill) Repeatable() {}

// SkillStands says how a run of a browser skill stands.
type SkillStands struct {
	Phase skill.RunPhase `json:"phase"`
}

// CommitSkill tells a run of a browser skill that waits that its approval is decided with these
// arguments, and that its turn has come. The run reads the approval itself. Replies SkillStands,
// or INVALID_ARGS if the arguments are not the approved ones.
type CommitSkill struct {
	Approval id.ApprovalID   `json:"approval"`
	Args     json.RawMessage `json:"args"`
}

// Repeatable: a run that does not wait any more answers how it stands.
func (CommitSkill) Repeatable() {}

// LookSkill tells a run of a browser skill that its approval was refused, or that the run of its
// agent or workflow has ended. The run reads which.
type LookSkill struct{}

// WithdrawSkill tells a run of a browser skill that its caller may not run the skill any more.
// Replies SkillStands.
type WithdrawSkill struct {
	Why string `json:"why"` // for people
}

// Repeatable: a run that has ended answers how it stands.
func (WithdrawSkill) Repeatable() {}

// RepeatSkill tells a run of a browser skill that has ended that another call with the same values got
// its result. Replies SkillStands.
type RepeatSkill struct{}

// Repeatable: a run that has been told so changes nothing.
func (RepeatSkill) Repeatable() {}

// TimerLook is the timer by which the commit that refuses an approval, or ends the run of an
// agent, makes a run of a browser skill look.
const TimerLook = "look"
