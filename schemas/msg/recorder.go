package msg

import (
	"encoding/json"

	"agentsvc/schemas/id"
)

// RecordDo is what is asked of the recorder of a node.
type RecordDo string

// Values of RecordDo.
const (
	RecordStart   RecordDo = "start"   // a session at URL, or the live one that a call with Key began
	RecordRead    RecordDo = "read"    // how a session stands; with After, once its picture is another one
	RecordAct     RecordDo = "act"     // Action
	RecordFinish  RecordDo = "finish"  // end a session, and replay what it recorded with Values
	RecordEnd     RecordDo = "end"     // end a session and forget it; with Key, unless another call with Key began it too
	RecordPicture RecordDo = "picture" // the picture named After
	RecordTaken   RecordDo = "taken"   // the steps of an ended session, for a skill that Holder saves; no other holder gets them meanwhile
	RecordUsed    RecordDo = "used"    // the skill is saved
	RecordSpared  RecordDo = "spared"  // Holder saves no skill
	RecordHeld    RecordDo = "held"    // does the principal have a live session here
)

// Record asks the recorder of browser skills of a node. It crosses nodes: a session lives on the
// node that owns the shard of its id, which is that of its principal.
type Record struct {
	Do        RecordDo             `json:"do"`
	Tenant    id.TenantID          `json:"tenant"`
	Home      id.UUID              `json:"home"` // of the principal: its shard says which node holds the session
	Principal string               `json:"principal"`
	Session   id.RecorderSessionID `json:"session"`
	URL       string               `json:"url,omitempty"`
	// Residency are the hosts that the tenant allows, if Resides.
	Resides   bool            `json:"resides,omitempty"`
	Residency []string        `json:"residency,omitempty"`
	After     string          `json:"after,omitempty"`
	Holder    string          `json:"holder,omitempty"` // the call that saves a skill
	Action    json.RawMessage `json:"action,omitempty"` // a skill.Action
	Key       string          `json:"key,omitempty"`    // of the call of a start or an action; a repetition has the same one. Empty: it has none
	Values    json.RawMessage `json:"values,omitempty"` // by parameter; empty: as they were recorded
	// Reads says that a recording without a commit step changes nothing, so that it is replayed.
	Reads bool `json:"reads,omitempty"`
}

// Recorded answers a Record.
type Recorded struct {
	Session json.RawMessage `json:"session,omitempty"` // a skill.RecorderSession
	Steps   json.RawMessage `json:"steps,omitempty"`   // a list of skill.Step
	JPEG    []byte          `json:"jpeg,omitempty"`
	Held    bool            `json:"held,omitempty"`  // another call began it
	Begun   bool            `json:"begun,omitempty"` // a call with Key began it
}
