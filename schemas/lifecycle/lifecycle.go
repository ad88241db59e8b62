// Package lifecycle holds the status values of service.md, States and
// transitions, and of open-parts.md. A test compares them with the SQL enums.
package lifecycle

// RunStatus is the status of a run.
type RunStatus string

// Values of RunStatus (service.md, Run status). RunExpired exists in the enum
// but is never set.
const (
	RunQueued          RunStatus = "queued"
	RunRunning         RunStatus = "running"
	RunWaitingApproval RunStatus = "waiting_approval"
	RunSucceeded       RunStatus = "succeeded"
	RunFailed          RunStatus = "failed"
	RunCancelled       RunStatus = "cancelled"
	RunExpired         RunStatus = "expired"
)

// RunStatuses lists every value, in the specification's order.
var RunStatuses = []RunStatus{RunQueued, RunRunning, RunWaitingApproval, RunSucceeded, RunFailed, RunCancelled, RunExpired}

// Terminal reports whether a run with this status has ended.
func (s RunStatus) Terminal() bool {
	switch s {
	case RunSucceeded, RunFailed, RunCancelled, RunExpired:
		return true
	}
	return false
}

// StepStatus is the status of a step of a run.
type StepStatus string

// Values of StepStatus (open-parts.md, Threads, runs, attachments).
const (
	StepRunning   StepStatus = "running"
	StepSucceeded StepStatus = "succeeded"
	StepFailed    StepStatus = "failed"
	StepWaiting   StepStatus = "waiting"
	StepAbandoned StepStatus = "abandoned"
)

// StepStatuses lists every value.
var StepStatuses = []StepStatus{StepRunning, StepSucceeded, StepFailed, StepWaiting, StepAbandoned}

// StepKind is the kind of work of a step.
type StepKind string

// Values of StepKind (service.md, Thread, run, step; open-parts.md).
const (
	StepLLM       StepKind = "llm"
	StepTool      StepKind = "tool"
	StepApproval  StepKind = "approval"
	StepRetrieval StepKind = "retrieval"
	StepHandoff   StepKind = "handoff"
	StepAgent     StepKind = "agent"
	StepNode      StepKind = "node"
)

// StepKinds lists every value.
var StepKinds = []StepKind{StepLLM, StepTool, StepApproval, StepRetrieval, StepHandoff, StepAgent, StepNode}

// ApprovalStatus is the status of an approval.
type ApprovalStatus string

// Values of ApprovalStatus (service.md, Approval status).
const (
	ApprovalPending   ApprovalStatus = "pending"
	ApprovalApproved  ApprovalStatus = "approved"
	ApprovalEdited    ApprovalStatus = "edited"
	ApprovalRejected  ApprovalStatus = "rejected"
	ApprovalResponded ApprovalStatus = "responded"
	ApprovalExpired   ApprovalStatus = "expired"
	ApprovalCancelled ApprovalStatus = "cancelled"
)

// ApprovalStatuses lists every value, in the specification's order.
var ApprovalStatuses = []ApprovalStatus{ApprovalPending, ApprovalApproved, ApprovalEdited, ApprovalRejected, ApprovalResponded, ApprovalExpired, ApprovalCancelled}

// Terminal reports whether an approval with this status is finally decided.
func (s ApprovalStatus) Terminal() bool { return s != ApprovalPending }

// Action is a decision on an approval.
type Action string

// Values of Action (open-parts.md, Questions settled). Approvers use the first four;
// run.resumed names all but ActionCancel.
const (
	ActionApprove Action = "approve"
	ActionEdit    Action = "edit"
	ActionReject  Action = "reject"
	ActionRespond Action = "respond"
	ActionExpire  Action = "expire"
	ActionCancel  Action = "cancel"
)

// Actions lists every value.
var Actions = []Action{ActionApprove, ActionEdit, ActionReject, ActionRespond, ActionExpire, ActionCancel}

// Risk is the label that a policy puts on an approval.
type Risk string

// Values of Risk (service.md, Approval policy).
const (
	RiskLow      Risk = "low"
	RiskMedium   Risk = "medium"
	RiskHigh     Risk = "high"
	RiskCritical Risk = "critical"
)

// Risks lists every value, the lowest first.
var Risks = []Risk{RiskLow, RiskMedium, RiskHigh, RiskCritical}

// VersionStatus is the status of a version of an agent.
type VersionStatus string

// Values of VersionStatus (open-parts.md, Agents, versions, manifest).
const (
	VersionDraft      VersionStatus = "draft"
	VersionPublished  VersionStatus = "published"
	VersionSuperseded VersionStatus = "superseded"
)

// VersionStatuses lists every value.
var VersionStatuses = []VersionStatus{VersionDraft, VersionPublished, VersionSuperseded}

// Role is the role of a principal (service.md, Endpoints): member < admin < owner.
// RoleManager is a role on an org node and only assigned to approvals.
type Role string

// Values of Role.
const (
	RoleMember  Role = "member"
	RoleManager Role = "manager"
	RoleAdmin   Role = "admin"
	RoleOwner   Role = "owner"
)

// UserRoles lists the roles a user can have in the tenant.
var UserRoles = []Role{RoleMember, RoleAdmin, RoleOwner}

// ApproverRoles lists the roles that an approval can be assigned to, the lowest
// first.
var ApproverRoles = []Role{RoleMember, RoleManager, RoleAdmin, RoleOwner}

// Above reports whether r is higher than other.
func (r Role) Above(other Role) bool { return r.rank() > other.rank() }

// Satisfies reports whether a principal with tenant role r meets the required role want.
// RoleManager is not a tenant role; member never satisfies it here.
func (r Role) Satisfies(want Role) bool { return r.rank() >= want.rank() }

func (r Role) rank() int {
	switch r {
	case RoleOwner:
		return 4
	case RoleAdmin:
		return 3
	case RoleManager:
		return 2
	case RoleMember:
		return 1
	}
	return 0
}

// Failure is the code a run fails with (open-parts.md, Run failure codes; Changes, Workflows).
type Failure string

// Values of Failure.
const (
	FailCancelled            Failure = "CANCELLED"
	FailExpired              Failure = "EXPIRED"
	FailGateRejected         Failure = "GATE_REJECTED"
	FailToolFailed           Failure = "TOOL_FAILED"
	FailEventTimeout         Failure = "EVENT_TIMEOUT"
	FailModelError           Failure = "MODEL_ERROR"
	FailModelUnavailable     Failure = "MODEL_UNAVAILABLE"
	FailLimitExceeded        Failure = "LIMIT_EXCEEDED"
	FailOutputInvalid        Failure = "OUTPUT_INVALID"
	FailChildWaitingApproval Failure = "CHILD_WAITING_APPROVAL"
	FailChildFailed          Failure = "CHILD_FAILED"
	FailExpression           Failure = "EXPRESSION_FAILED"
	FailInternal             Failure = "INTERNAL"
)

// OriginKind is what started a run (open-parts.md, Threads, runs).
type OriginKind string

// Values of OriginKind. OriginChannel is reserved.
const (
	OriginAPIKey   OriginKind = "api_key"
	OriginUser     OriginKind = "user"
	OriginTrigger  OriginKind = "trigger"
	OriginChannel  OriginKind = "channel"
	OriginEmbedKey OriginKind = "embed_key"
	OriginWorkflow OriginKind = "workflow"
)

// OriginKinds lists every value.
var OriginKinds = []OriginKind{OriginAPIKey, OriginUser, OriginTrigger, OriginChannel, OriginEmbedKey, OriginWorkflow}

// UsageKind is the kind of a usage record.
type UsageKind string

// Values of UsageKind (open-parts.md, Audit, usage).
const (
	UsageLLM             UsageKind = "llm"
	UsageEmbedding       UsageKind = "embedding"
	UsageBrowserSkillRun UsageKind = "browser_skill_run"
)

// UsageKinds lists every value.
var UsageKinds = []UsageKind{UsageLLM, UsageEmbedding, UsageBrowserSkillRun}

// DeliveryStatus is the status of a webhook delivery (service.md, States).
type DeliveryStatus string

// Values of DeliveryStatus (open-parts.md, Webhooks).
const (
	DeliveryPending   DeliveryStatus = "pending"
	DeliverySucceeded DeliveryStatus = "succeeded"
	DeliveryFailed    DeliveryStatus = "failed"
)

// DeliveryStatuses lists every value.
var DeliveryStatuses = []DeliveryStatus{DeliveryPending, DeliverySucceeded, DeliveryFailed}

// TriggerKind is what fires a trigger besides a person (open-parts.md, triggers).
type TriggerKind string

// Values of TriggerKind.
const (
	TriggerHook     TriggerKind = "hook"
	TriggerSchedule TriggerKind = "schedule"
)

// TriggerKinds lists every value.
var TriggerKinds = []TriggerKind{TriggerHook, TriggerSchedule}

// DocumentStatus is the status of a document of a knowledge base (open-parts.md, Knowledge bases).
type DocumentStatus string

// Values of DocumentStatus.
const (
	DocumentQueued     DocumentStatus = "queued"
	DocumentProcessing DocumentStatus = "processing"
	DocumentReady      DocumentStatus = "ready"
	DocumentFailed     DocumentStatus = "failed"
)

// DocumentStatuses lists every value.
var DocumentStatuses = []DocumentStatus{DocumentQueued, DocumentProcessing, DocumentReady, DocumentFailed}

// SourceKind is the kind of a source of a knowledge base (service.md, Knowledge base, knowledge
// source, ACL).
type SourceKind string

// Values of SourceKind.
const (
	SourceUpload      SourceKind = "upload"
	SourceOfficeDrive SourceKind = "office_drive"
	SourceWiki        SourceKind = "wiki"
	SourceCloudDrive  SourceKind = "cloud_drive"
	SourceObjectStore SourceKind = "object_store"
	SourceWeb         SourceKind = "web"
)

// SourceKinds lists every value.
var SourceKinds = []SourceKind{SourceUpload, SourceOfficeDrive, SourceWiki, SourceCloudDrive, SourceObjectStore, SourceWeb}

// SourceStatus is the status of a source of a knowledge base (open-parts.md, Knowledge bases).
type SourceStatus string

// Values of SourceStatus.
const (
	SourceIdle    SourceStatus = "idle"
	SourceQueued  SourceStatus = "queued"
	SourceSyncing SourceStatus = "syncing"
	SourceOK      SourceStatus = "ok"
	SourceFailed  SourceStatus = "failed"
)

// SourceStatuses lists every value.
var SourceStatuses = []SourceStatus{SourceIdle, SourceQueued, SourceSyncing, SourceOK, SourceFailed}

// Tally is what a row of the figures counts: a run that ended, an approval that was opened or
// ended, a delivery that ended.
type Tally string

// Values of Tally (console.md, GET /v1/stats).
const (
	TallySucceeded   Tally = "succeeded"
	TallyFailed      Tally = "failed"
	TallyCancelled   Tally = "cancelled"
	TallyRequested   Tally = "requested"
	TallyDecided     Tally = "decided"
	TallyExpired     Tally = "expired"
	TallyDelivered   Tally = "delivered"
	TallyUndelivered Tally = "undelivered"
)

// Tallies lists every value.
var Tallies = []Tally{TallySucceeded, TallyFailed, TallyCancelled, TallyRequested, TallyDecided, TallyExpired, TallyDelivered, TallyUndelivered}
