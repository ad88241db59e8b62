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

// Terminal reports whether a run of this status has ended for good.
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

// StepKind says what a step did.
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

// Role is what a principal may do (service.md, Endpoints): member < admin <
// owner. RoleManager is a role on an org node and only assigned to approvals.
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

// Satisfies reports whether a principal of tenant role r may use what asks for
// want. The manager of an org node is not a tenant role and is never satisfied
// by member here.
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

// Failure is the code a run fails with (open-parts.md, Run failure codes).
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
	FailInternal             Failure = "INTERNAL"
)

// Failures lists every value.
var Failures = []Failure{FailCancelled, FailExpired, FailGateRejected, FailToolFailed, FailEventTimeout, FailModelError,
	FailModelUnavailable, FailLimitExceeded, FailOutputInvalid, FailChildWaitingApproval, FailChildFailed, FailInternal}

// OriginKind says what started a run (open-parts.md, Threads, runs).
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

// UsageKind is what a usage record counts.
type UsageKind string

// Values of UsageKind (open-parts.md, Audit, usage).
const (
	UsageLLM             UsageKind = "llm"
	UsageEmbedding       UsageKind = "embedding"
	UsageBrowserSkillRun UsageKind = "browser_skill_run"
)

// UsageKinds lists every value.
var UsageKinds = []UsageKind{UsageLLM, UsageEmbedding, UsageBrowserSkillRun}
