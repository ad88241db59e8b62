package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/transport/edge"
)

const skillsTag = "Browser skills"

// SkillRuns starts dry runs of browser skills, and reads runs.
type SkillRuns interface {
	// DryRun runs a skill up to its commit step and waits for the end. by is who asked for it. While
	// the dry run of an earlier request with the same by.Idem is in progress, it waits for that one,
	// for 5 s at most, and then is IDEMPOTENCY_IN_PROGRESS.
	// Without a browser it is BROWSER_SKILL_UNAVAILABLE, and a run that does not land is
	// BROWSER_SKILL_RUN_FAILED with its extensions; its row is kept.
	DryRun(ctx context.Context, by store.By, of *store.Skill, values skill.Values) (*api.SkillRun, error)
	// Runs returns runs, newest first, after at; it may return one more than limit.
	Runs(ctx context.Context, v store.View, f api.SkillRunFilter, at id.SkillRunID, limit int) ([]api.SkillRun, error)
	// Run returns one run, nil if the tenant does not have it.
	Run(ctx context.Context, v store.View, run id.SkillRunID) (*api.SkillRun, error)
}

type createSkill struct{ Body api.SkillCreate }

type oneSkill struct {
	ID id.SkillID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
}

type patchSkill struct {
	ID   id.SkillID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	Body api.SkillPatch
}

type dryRunSkill struct {
	ID   id.SkillID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	Body api.SkillDryRun
}

type ofSkill struct {
	api.Page
	ID id.SkillID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
}

type grantSkill struct {
	ID   id.SkillID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	Body api.SkillGrantCreate
}

type oneSkillGrant struct {
	ID      id.SkillID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	GrantID id.GrantID `path:"grantId" missing:"BROWSER_SKILL_NOT_FOUND"`
}

type listSkillRuns struct {
	api.Page
	AgentRunID *id.RunID `query:"agent_run_id" doc:"only those that this run made"`
}

type oneSkillRun struct {
	RunID id.SkillRunID `path:"runId" missing:"BROWSER_SKILL_NOT_FOUND"`
}

type skillShot struct {
	Key string `path:"key" maxLength:"400" doc:"screenshot_key of a run, with its slashes"`
}

type attach struct{ Body api.Attach }

func (p *Platform) skillRoutes(t *edge.Table) {
	const member, admin = lifecycle.RoleMember, lifecycle.RoleAdmin
	missing := []problem.Code{problem.CodeBrowserSkillNotFound}
	edge.Enum(t, skill.AuthKinds...)
	edge.Enum(t, skill.Modes...)
	edge.Enum(t, skill.Statuses...)
	edge.Enum(t, skill.Codes...)
	edge.Enum(t, skill.Ops...)
	edge.Enum(t, api.SkillGrantOps...)
	describeSkills(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/browser-skills", ID: "listSkills", Answer: listed(sampleSkill),
		Summary: "List browser skills", Tag: skillsTag, Role: member}, p.listSkills)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/browser-skills", ID: "createSkill", Answer: api.SkillAnswer{Skill: &sampleSkill},
		Summary:     "Create a browser skill",
		Description: "Its secrets are stored encrypted and never returned. Agents get its tools once they are granted.",
		Tag:         skillsTag, Role: admin, Status: 201, Idempotent: true,
		Codes:   []problem.Code{problem.CodeBrowserSkillInvalid, problem.CodeBrowserSkillAttestationRequired, problem.CodeSlugTaken},
		Example: sampleSkillBody}, p.createSkill)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/browser-skills/runs", ID: "listAllSkillRuns", Answer: listed(sampleSkillRun),
		Summary: "List runs of browser skills", Tag: skillsTag, Role: member}, p.listAllSkillRuns)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/browser-skills/runs/{runId}", ID: "getSkillRun", Answer: api.SkillRunAnswer{Run: &sampleSkillRun},
		Summary: "Read a run of a browser skill", Tag: skillsTag, Role: member, Codes: missing}, p.getSkillRun)
	edge.HandleDownload(t, edge.Route{Method: "GET", Path: "/v1/browser-skills/artifacts/{key...}", ID: "downloadSkillShot", Summary: "Download a screenshot",
		Description: "A JPEG. Secrets on the page are painted over.", Tag: skillsTag, Role: member}, p.downloadSkillShot)
	p.recorderRoutes(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/browser-skills/{id}", ID: "getSkill", Answer: sampleSkillDetail,
		Summary: "Read a browser skill", Description: "With its grants and its last runs.", Tag: skillsTag, Role: member, Codes: missing}, p.getSkill)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/browser-skills/{id}", ID: "updateSkill", Answer: sampleSkillDetail,
		Summary:     "Change, pause or resume a browser skill",
		Description: "Its slug stays. A definition that visits a new host drops the stored secrets, unless the same body has auth; the response then has credentials_dropped.",
		Tag:         skillsTag, Role: admin, Codes: append([]problem.Code{problem.CodeBrowserSkillInvalid, problem.CodeBrowserSkillAttestationRequired}, missing...),
		Example: map[string]any{"policy": map[string]any{"required_approvals": 2}}}, p.updateSkill)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/browser-skills/{id}", ID: "deleteSkill", Summary: "Delete a browser skill",
		Description: "With its grants and runs, unless one of them has begun its commit and has not ended. Manifests that name it stay and get nothing of it.",
		Tag:         skillsTag, Role: admin, Codes: append([]problem.Code{problem.CodeInUse}, missing...)}, p.deleteSkill)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/browser-skills/{id}/dry-run", ID: "dryRunSkill", Answer: api.SkillRunAnswer{Run: &sampleDryRun},
		Summary:     "Try a browser skill",
		Description: "Fills the form up to the commit step and submits nothing. It opens no approval. The response comes when the run has ended.",
		Tag:         skillsTag, Role: admin, Status: 200, Idempotent: true,
		Codes:   append([]problem.Code{problem.CodeInvalidArgs, problem.CodeBrowserSkillUnavailable, problem.CodeBrowserSkillRunFailed}, missing...),
		Example: map[string]any{"params": map[string]any{"order": "1001"}}}, p.dryRunSkill)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/browser-skills/{id}/runs", ID: "listSkillRuns", Answer: listed(sampleSkillRun),
		Summary: "List a browser skill's runs", Tag: skillsTag, Role: member, Codes: missing}, p.listSkillRuns)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/browser-skills/{id}/grants", ID: "listSkillGrants", Answer: listed(sampleSkillGrant),
		Summary: "List a browser skill's grants", Tag: skillsTag, Role: admin, Codes: missing}, p.listSkillGrants)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/browser-skills/{id}/grants", ID: "createSkillGrant", Answer: api.Items[api.SkillGrant]{Items: []api.SkillGrant{sampleSkillGrant}},
		Summary:     "Grant a browser skill",
		Description: "For an agent, its newest manifest gets the operations too and is published as a new version. For an org node only grants are made: manifests must name the skill. A grant that is there already is returned.",
		Tag:         skillsTag, Role: admin, Status: 201, Idempotent: true, Codes: missing,
		Again:   again(p, func(c *edge.Caller, in *grantSkill) msg.Revoked { return given(c, in.Body.AgentID) }),
		Example: map[string]any{"agent_id": sampleAgentID, "ops": []string{"run", "dry_run"}}}, p.createSkillGrant)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/browser-skills/{id}/grants/{grantId}", ID: "deleteSkillGrant", Summary: "Revoke a grant of a browser skill",
		Description: "The next call is refused already. The agent's manifest stays.", Tag: skillsTag, Role: admin, Codes: missing}, p.deleteSkillGrant)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/integrations/attach", ID: "attachIntegration", Answer: api.Items[api.Attached]{Items: []api.Attached{sampleAttached}},
		Summary:     "Attach a browser skill to agents",
		Description: "Grants the tools to all targets, and adds them to their newest manifests, in new versions. All targets or none.",
		Tag:         skillsTag, Role: admin, Status: 200, Idempotent: true, Codes: missing,
		Again: p.attachedAgain,
		Example: map[string]any{"connector": map[string]any{"kind": "browser_skill", "id": sampleSkill.ID}, "tools": []string{"run", "dry_run"},
			"targets": []map[string]any{{"agent_id": sampleAgentID}}, "publish": true}}, p.attach)
}

func (p *Platform) listSkills(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Skill], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "browser-skills", store.View.Skills, func(s api.Skill) id.SkillID { return s.ID })
}

// residency returns the hosts that the tenant's skills may visit.
func (p *Platform) residency(ctx context.Context, t id.TenantID) (skill.Residency, error) {
	tenant, err := p.Store.View(t).Tenant(ctx)
	if err != nil || tenant.Residency == nil {
		return nil, err
	}
	return append(skill.Residency{}, tenant.Residency.AllowedHosts...), nil
}

func invalidSkill(path, message string) error {
	return problem.New(problem.CodeBrowserSkillInvalid, path+": "+message)
}

// checkStart refuses a skill that could never open its first page.
func (p *Platform) checkStart(ctx context.Context, startURL string) error {
	if err := p.SourceURLs(ctx, startURL, true); err != nil {
		return invalidSkill("definition.start_url", err.Error())
	}
	return nil
}

func (p *Platform) createSkill(ctx context.Context, c *edge.Caller, in *createSkill) (_ *api.SkillAnswer, err error) {
	b := &in.Body
	taught, over, err := p.recorded(ctx, c, b.RecorderID)
	defer func() { over(err) }()
	if err != nil {
		return nil, err
	}
	parsed, err := skill.Parse(skill.Input{Definition: json.RawMessage(b.Definition), Policy: json.RawMessage(b.Policy), Auth: json.RawMessage(b.Auth),
		OwnerAttested: b.OwnerAttested, Recorded: taught.Recorded, Residency: taught.Residency})
	if err != nil {
		return nil, err
	}
	if err := p.checkStart(ctx, parsed.Definition.StartURL); err != nil {
		return nil, err
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.SkillAnswer, error) {
		made, err := tx.CreateSkill(ctx, b, parsed)
		return &api.SkillAnswer{Skill: made}, err
	})
}

// lastRuns is how many runs a skill is shown with (open-parts.md, Browser skills).
const lastRuns = 20

// skillDetail returns a skill as GET and PATCH answer it.
func (p *Platform) skillDetail(ctx context.Context, v store.View, s *api.Skill) (*api.SkillDetail, error) {
	out := &api.SkillDetail{Skill: s, Grants: []api.SkillGrant{}, Runs: []api.SkillRun{}}
	var err error
	if out.Grants, err = v.SkillGrants(ctx, s.ID, id.GrantID{}, api.MaxLimit-1); err != nil || p.SkillRuns == nil {
		return out, err
	}
	bound := store.Bound{Bytes: api.MaxListBytes}
	runs, err := p.SkillRuns.Runs(ctx, v.Bounded(&bound), api.SkillRunFilter{Skill: &s.ID}, id.SkillRunID{}, lastRuns)
	if err != nil {
		return nil, err
	}
	out.Runs = append(out.Runs, runs[:min(len(runs), lastRuns)]...)
	return out, nil
}

func (p *Platform) getSkill(ctx context.Context, c *edge.Caller, in *oneSkill) (*api.SkillDetail, error) {
	v := p.Store.View(c.Tenant)
	s, err := v.Skill(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return p.skillDetail(ctx, v, s)
}

func (p *Platform) updateSkill(ctx context.Context, c *edge.Caller, in *patchSkill) (*api.SkillDetail, error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.Skill(ctx, in.ID); err != nil {
		return nil, err
	}
	b := &in.Body
	var taught store.SkillSteps
	over := func(error) {}
	if len(b.Definition) > 0 || b.RecorderID != nil {
		switch {
		case b.RecorderID == nil:
			return nil, invalidSkill("definition", "changes only together with recorder_session_id and owner_attested: teach the skill anew")
		case len(b.Definition) == 0:
			return nil, invalidSkill("recorder_session_id", "belongs to a definition: give both")
		case !b.OwnerAttested:
			return nil, invalidSkill("owner_attested", "must be true: only record actions on a system that you own or may automate")
		}
		var err error
		if taught, over, err = p.recorded(ctx, c, b.RecorderID); err != nil {
			over(err)
			return nil, err
		}
		var d struct {
			StartURL string `json:"start_url"`
		}
		// An invalid start_url is reported with the other faults when the definition is read.
		if json.Unmarshal(b.Definition, &d) == nil && (skill.Scope{AnyHost: true}).Allows(d.StartURL) == "" {
			if err := p.checkStart(ctx, d.StartURL); err != nil {
				over(err)
				return nil, err
			}
		}
	}
	r := access(c)
	var dropped bool
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (s *api.Skill, err error) {
		s, dropped, err = tx.UpdateSkill(ctx, in.ID, b, taught)
		return s, err
	})
	out, err = told(ctx, p, r, out, err)
	if over(err); err != nil {
		return nil, err
	}
	shown, err := p.skillDetail(ctx, v, out)
	if err != nil {
		return nil, err
	}
	shown.CredentialsDropped = dropped
	return shown, nil
}

// gone makes what is not found be told like any removal: see removed.
func gone[Out any](ctx context.Context, p *Platform, r msg.Revoked, out *Out, err error) (*Out, error) {
	if errors.Is(err, problem.New(problem.CodeBrowserSkillNotFound, "")) {
		if failed := p.revoke(ctx, r); failed != nil {
			return nil, failed
		}
	}
	return told(ctx, p, r, out, err)
}

func (p *Platform) deleteSkill(ctx context.Context, c *edge.Caller, in *oneSkill) (*edge.Empty, error) {
	out, err := changeLong(ctx, p, c, none1((*store.Tx).DeleteSkill, in.ID))
	return gone(ctx, p, access(c), out, err)
}

func (p *Platform) listSkillGrants(ctx context.Context, c *edge.Caller, in *ofSkill) (*api.List[api.SkillGrant], error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.Skill(ctx, in.ID); err != nil {
		return nil, err
	}
	return list(ctx, v, in.Page, "skill-grants", func(v store.View, ctx context.Context, at id.GrantID, limit int) ([]api.SkillGrant, error) {
		return v.SkillGrants(ctx, in.ID, at, limit)
	}, func(g api.SkillGrant) id.GrantID { return g.ID })
}

// given is the revocation for new grants: an agent's next run uses its new version.
func given(c *edge.Caller, a *id.AgentID) msg.Revoked {
	if a == nil {
		return access(c)
	}
	return msg.Revoked{What: msg.ChangedAgent, Tenant: c.Tenant, Agent: *a}
}

func (p *Platform) createSkillGrant(ctx context.Context, c *edge.Caller, in *grantSkill) (*api.Items[api.SkillGrant], error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.Items[api.SkillGrant], error) {
		made, err := tx.GrantSkill(ctx, in.ID, &in.Body)
		return &api.Items[api.SkillGrant]{Items: made}, err
	})
	return told(ctx, p, given(c, in.Body.AgentID), out, err)
}

func (p *Platform) deleteSkillGrant(ctx context.Context, c *edge.Caller, in *oneSkillGrant) (*edge.Empty, error) {
	if _, err := p.Store.View(c.Tenant).Skill(ctx, in.ID); err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, none2((*store.Tx).RevokeSkill, in.ID, in.GrantID))
	return gone(ctx, p, access(c), out, err)
}

func (p *Platform) attachedAgain(ctx context.Context, c *edge.Caller, in any) error {
	typed, ok := in.(*attach)
	if !ok {
		return fmt.Errorf("platform: input %T belongs to another route", in)
	}
	return p.tellTargets(ctx, c, typed)
}

func (p *Platform) tellTargets(ctx context.Context, c *edge.Caller, in *attach) error {
	for _, t := range in.Body.Targets {
		if err := p.revoke(ctx, given(c, &t.AgentID)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Platform) attach(ctx context.Context, c *edge.Caller, in *attach) (*api.Items[api.Attached], error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.Items[api.Attached], error) {
		made, err := tx.AttachSkill(ctx, &in.Body)
		return &api.Items[api.Attached]{Items: made}, err
	})
	if err == nil {
		if err := p.tellTargets(ctx, c, in); err != nil {
			return nil, err
		}
		return out, nil
	}
	for _, t := range in.Body.Targets { // told returns the error that it got
		_, _ = told(ctx, p, given(c, &t.AgentID), out, err)
	}
	return nil, err
}

func noBrowser() error {
	return &problem.Error{Code: problem.CodeBrowserSkillUnavailable, Detail: "This deployment has no browser: an operator sets SVC_BROWSER.", RetryAfter: time.Minute}
}

func (p *Platform) dryRunSkill(ctx context.Context, c *edge.Caller, in *dryRunSkill) (*api.SkillRunAnswer, error) {
	of, err := p.Store.View(c.Tenant).SkillOf(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	params := json.RawMessage(in.Body.Params)
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	bound, faults, err := of.Definition.Bind(ctx, skill.ForDryRun, params)
	if err != nil {
		return nil, err
	}
	if len(faults) > 0 {
		for i := range faults {
			faults[i].Path = "params." + faults[i].Path
		}
		return nil, skill.InvalidArgs(faults)
	}
	if p.SkillRuns == nil {
		return nil, noBrowser()
	}
	run, err := p.SkillRuns.DryRun(ctx, by(c), of, bound.Values) // the commit that begins it audits it
	if err != nil {
		return nil, err
	}
	out := &api.SkillRunAnswer{Run: run}
	if c.Idem == nil {
		return out, nil
	}
	return change(ctx, p, c, func(context.Context, *store.Tx) (*api.SkillRunAnswer, error) { return out, nil })
}

func (p *Platform) skillRuns(ctx context.Context, c *edge.Caller, page api.Page, f api.SkillRunFilter) (*api.List[api.SkillRun], error) {
	return list(ctx, p.Store.View(c.Tenant), page, "skill-runs", func(v store.View, ctx context.Context, at id.SkillRunID, limit int) ([]api.SkillRun, error) {
		if p.SkillRuns == nil {
			return []api.SkillRun{}, nil
		}
		return p.SkillRuns.Runs(ctx, v, f, at, limit)
	}, func(r api.SkillRun) id.SkillRunID { return r.ID })
}

func (p *Platform) listAllSkillRuns(ctx context.Context, c *edge.Caller, in *listSkillRuns) (*api.List[api.SkillRun], error) {
	return p.skillRuns(ctx, c, in.Page, api.SkillRunFilter{AgentRun: in.AgentRunID})
}

func (p *Platform) listSkillRuns(ctx context.Context, c *edge.Caller, in *ofSkill) (*api.List[api.SkillRun], error) {
	if _, err := p.Store.View(c.Tenant).Skill(ctx, in.ID); err != nil {
		return nil, err
	}
	return p.skillRuns(ctx, c, in.Page, api.SkillRunFilter{Skill: &in.ID})
}

func (p *Platform) getSkillRun(ctx context.Context, c *edge.Caller, in *oneSkillRun) (*api.SkillRunAnswer, error) {
	if p.SkillRuns == nil {
		return nil, store.NoSkill("run of a browser skill")
	}
	run, err := p.SkillRuns.Run(ctx, p.Store.View(c.Tenant), in.RunID)
	if err != nil {
		return nil, err
	}
	if run == nil {
		return nil, store.NoSkill("run of a browser skill")
	}
	return &api.SkillRunAnswer{Run: run}, nil
}

// shotKey is the form of a screenshot's key below the tenant: run, step, and filling if it is not the first.
var shotKey = regexp.MustCompile(`^[0-9a-f-]{36}/[A-Za-z0-9_-]{1,64}(\.[23])?\.jpg$`)

func (p *Platform) downloadSkillShot(ctx context.Context, c *edge.Caller, in *skillShot) (*edge.Download, error) {
	// The key begins with the caller's own tenant, or it is not looked for.
	rest, own := strings.CutPrefix(in.Key, store.SkillShots+"/"+c.Tenant.String()+"/")
	if !own || !shotKey.MatchString(rest) {
		return nil, problem.NotFound("screenshot")
	}
	if shot, err := p.recorderShot(ctx, c, rest); shot != nil || err != nil {
		return shot, err
	}
	// A picture lasts as long as its run: the file of a run that was erased or deleted with its skill is removed later.
	run, err := id.Parse(rest[:strings.IndexByte(rest, '/')])
	if err != nil {
		return nil, problem.NotFound("screenshot")
	}
	switch exists, err := p.Store.View(c.Tenant).HasSkillRun(ctx, id.SkillRunID{UUID: run}); {
	case err != nil:
		return nil, err
	case !exists:
		return nil, problem.NotFound("screenshot")
	}
	body, size, err := p.stored(ctx, in.Key, "screenshot")
	if err != nil {
		return nil, err
	}
	return &edge.Download{Name: rest[strings.IndexByte(rest, '/')+1:], MediaType: "image/jpeg", Size: size, Body: body, Inline: true, Cache: "private, max-age=86400"}, nil
}
