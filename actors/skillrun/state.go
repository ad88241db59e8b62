package skillrun

import (
	"encoding/json"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/skill"
)

// State is a run: its row, and what an activation remembers. The zero Phase means that the run has
// not begun.
type State struct {
	Tenant id.TenantID
	ID     id.SkillRunID
	Skill  id.SkillID
	Slug   string
	Taught int // the revision of the definition

	AgentRun *id.RunID
	Agent    *id.AgentID
	Approval *id.ApprovalID
	Reason   string
	By       msg.By
	Key      string

	skill.State
	// Begun says that an activation performs the compensation, which it does not do twice.
	Begun bool
	// Edited says that the values are not those of the preview.
	Edited bool
	// Changed names the parameters whose values are other ones.
	Changed []string
	Values  json.RawMessage // what is typed, by parameter
	// Repeated says that another call with the same values got the result.
	Repeated bool
	Record

	CreatedAt  time.Time
	FinishedAt *time.Time
}

// Record is what a run shows.
type Record struct {
	Page         *skill.Page // at the commit point
	Steps        []skill.StepResult
	Checks       []skill.CheckResult
	Result       json.RawMessage
	Compensation *Compensation
	Fault        *skill.Fault
	Shots        int // screenshots stored
}

// Compensation is what became of the compensation steps.
type Compensation struct {
	Ran   bool               `json:"ran"`   // each of them
	Steps []skill.StepResult `json:"steps"` // those that were begun, and those behind a failed one; never nil
	Error *string            `json:"error"` // nil: they ran
}

// kept is the contents of the state column, version 1: what no other column says.
type kept struct {
	V       int         `json:"v"`
	Stand   skill.State `json:"stand"`
	Begun   bool        `json:"begun,omitempty"`
	Edited  bool        `json:"edited,omitempty"`
	Changed []string    `json:"changed,omitempty"`
	Shots   int         `json:"shots,omitempty"`
	// Repeated is read by store.SkillRun too.
	Repeated bool   `json:"repeated,omitempty"`
	IP       string `json:"ip,omitempty"`
}

const keptVersion = 1

func (s *State) encode() []byte {
	b, err := json.Marshal(kept{V: keptVersion, Stand: s.State, Begun: s.Begun, Edited: s.Edited, Changed: s.Changed, Shots: s.Shots, Repeated: s.Repeated, IP: s.By.IP})
	if err != nil {
		panic(err) // plain fields always encode
	}
	return b
}

func (s *State) decode(b []byte) error {
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return fmt.Errorf("read the state of a skill run: %w", err)
	}
	if k.V != keptVersion {
		return fmt.Errorf("read the state of a skill run: version %d is not known here", k.V)
	}
	s.State, s.Begun, s.Edited, s.Changed, s.Shots, s.Repeated, s.By.IP = k.Stand, k.Begun, k.Edited, k.Changed, k.Shots, k.Repeated, k.IP
	return nil
}
