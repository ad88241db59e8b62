package skill

import (
	"context"
	"encoding/json"

	"agentsvc/schemas/id"
)

// Job is what a browser is asked to do for one run. transport/browser performs it, actors/skillrun
// asks for it.
type Job struct {
	Tenant     id.TenantID
	Skill      id.SkillID
	Run        id.SkillRunID
	Definition *Definition
	Values     Values
	Residency  Residency
	// Open opens one secret by its reference. It is called just before the secret is typed, and
	// the opening is audited. The executor keeps no copy beyond the page.
	Open func(ref string) (string, error)
	// Keep stores one screenshot (JPEG, secrets painted over) and returns its key.
	Keep func(ctx context.Context, step string, jpeg []byte) (key string, err error)
}

// StepStatus is what became of a step.
type StepStatus string

// Values of StepStatus (open-parts.md, Browser skills).
const (
	StepOK      StepStatus = "ok"
	StepFailed  StepStatus = "failed"
	StepSkipped StepStatus = "skipped" // its optional parameter was left out, or an earlier step failed
)

// StepStatuses lists every value.
var StepStatuses = []StepStatus{StepOK, StepFailed, StepSkipped}

// StepResult is one step of a run's record.
type StepResult struct {
	ID     string     `json:"id" doc:"Of the step in the definition."`
	Kind   Kind       `json:"kind" enum:"navigate,click,type,select,check,press,wait,scroll"`
	Label  string     `json:"label" doc:"What was done, for people. Never a value or a secret."`
	Status StepStatus `json:"status" enum:"ok,failed,skipped"`
	Note   string     `json:"note,omitempty" doc:"What else happened: a dialog, a popup, a refused download."`
	Shot   string     `json:"screenshot_key,omitempty" doc:"Key of the screenshot after the step."`
}

// Page is what a page shows at the commit point: the frozen preview of an approval.
type Page struct {
	URL    string            `json:"url" doc:"Where the page was."`
	Title  string            `json:"title" doc:"As the page says."`
	Shot   string            `json:"screenshot_key,omitempty" doc:"Key of the screenshot."`
	Values map[string]string `json:"values" doc:"What the bound fields hold, by parameter."`
}

// CheckResult is the outcome of one assertion.
type CheckResult struct {
	Kind     CheckKind `json:"kind" enum:"url_contains,text_present,element_present,element_text"`
	OK       bool      `json:"ok" doc:"true: it holds."`
	Expected string    `json:"expected" doc:"As the definition says."`
	Actual   string    `json:"actual" doc:"What was found."`
}

// Fault is why a job did not land. It holds no secret and no text of the page.
type Fault struct {
	Code      Code     `json:"code"`
	StepID    string   `json:"step_id,omitempty"`
	Selectors []string `json:"selectors,omitempty" doc:"The selectors that were tried."`
	Field     string   `json:"field,omitempty"`
	URL       string   `json:"url,omitempty"`
	Message   string   `json:"message,omitempty" doc:"One sentence for people."`
	// NoBrowser says that the node that was to perform the job has no browser, or none that may be
	// used. Nothing was begun.
	NoBrowser bool `json:"no_browser,omitempty"`
}

// Report is what a job, or a part of it, came to.
type Report struct {
	Event Event // Landed, Fails, LeftScope, Lost, Clicked, Verified, ChecksFailed or Compensated
	Fault *Fault
	Steps []StepResult // of this part alone, in order
	Page  Page         // of a part that landed
	// Read is what the bound fields hold, by parameter, as Compare needs it: Page.Values are for show, without secrets. Of a
	// prepare that landed; it stays in its process and is not stored.
	Read   map[string]string `json:"-"`
	Checks []CheckResult
	Result json.RawMessage // an object by result field; nil where none was read
	Shots  int             // screenshots stored
}
