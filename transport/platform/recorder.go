package platform

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/transport/edge"
)

// Recorder holds the sessions in which people record browser skills. A session that is unknown,
// or another principal's, is BROWSER_SKILL_NOT_FOUND.
type Recorder interface {
	Record(ctx context.Context, q *msg.Record) (*msg.Recorded, error)
}

type startRecorder struct{ Body api.RecorderStart }

type oneRecorder struct {
	ID id.RecorderSessionID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
}

type readRecorder struct {
	ID    id.RecorderSessionID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	After string               `query:"after" maxLength:"400" doc:"a screenshot_key: the response comes when the picture is another one, after 10 s at the latest"`
}

type actRecorder struct {
	ID   id.RecorderSessionID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	Body api.RecorderAction
}

type finishRecorder struct {
	ID   id.RecorderSessionID `path:"id" missing:"BROWSER_SKILL_NOT_FOUND"`
	Body api.RecorderFinish   `required:"false"`
}

func (p *Platform) recorderRoutes(t *edge.Table) {
	const admin = lifecycle.RoleAdmin
	const sessions = "/v1/browser-skills/recorder-sessions"
	missing := []problem.Code{problem.CodeBrowserSkillNotFound}
	edge.Enum(t, skill.RecorderStatuses...)
	edge.Enum(t, skill.ReplayStatuses...)
	edge.Enum(t, skill.ActionKinds...)
	edge.Enum(t, skill.ParamTypes...)
	edge.Enum(t, skill.Attrs...)
	edge.Handle(t, edge.Route{Method: "POST", Path: sessions, ID: "startRecorder", Answer: sampleRecorder,
		Summary: "Record a browser skill",
		Description: "Opens a page on the server. Its actions become steps. A person has one live session at a time; it expires after 15 minutes without use, after an hour at the latest, " +
			"and does not survive a restart of its node. Nothing is stored before a skill is created with recorder_session_id.",
		Tag: skillsTag, Role: admin, Status: 201, Idempotent: true,
		Codes:   []problem.Code{problem.CodeInUse, problem.CodeInvalidArgs, problem.CodeBrowserSkillUnavailable, problem.CodeBrowserSkillInvalid},
		Example: map[string]any{"start_url": "https://portal.example.com/claims"}}, p.startRecorder)
	edge.Handle(t, edge.Route{Method: "GET", Path: sessions + "/{id}", ID: "getRecorder", Answer: sampleRecorder,
		Summary: "Read a recorder session",
		Description: "Your own. With after=<screenshot_key> the response waits until the page looks different: a new picture comes up to four times in a second while something changes. " +
			"Password fields, and what shows a secret, are painted over.",
		Tag: skillsTag, Role: admin, Codes: missing}, p.getRecorder)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: sessions + "/{id}", ID: "deleteRecorder", Summary: "Throw a recorder session away",
		Tag: skillsTag, Role: admin, Codes: missing}, p.deleteRecorder)
	edge.Handle(t, edge.Route{Method: "POST", Path: sessions + "/{id}/actions", ID: "actInRecorder", Answer: sampleRecorder,
		Summary: "Act in a recorder session",
		Description: "Performs one action of the mouse or the keyboard, by coordinates or by element, and records it as a step whose selectors were each proved to find the element alone. " +
			"What is typed into a password field is a secret: it is kept in memory for the dry run, and is in no step, picture or log. A missing element is INVALID_ARGS, and the session goes on.",
		Tag: skillsTag, Role: admin, Status: 200, Idempotent: true, Codes: append([]problem.Code{problem.CodeInvalidArgs}, missing...),
		Example: map[string]any{"kind": "click", "x": 512, "y": 204}}, p.actInRecorder)
	edge.Handle(t, edge.Route{Method: "POST", Path: sessions + "/{id}/finish", ID: "finishRecorder", Answer: sampleFinished,
		Summary: "Finish a recorder session",
		Description: "Ends the page and replays the steps before the commit step as a dry run in a fresh one; dry_run says what became of it. A session whose dry run did not land can be " +
			"finished again with other params, and makes no skill. Without a commit step nothing is replayed, unless reads_only is true.",
		Tag: skillsTag, Role: admin, Status: 200, Idempotent: true, Codes: append([]problem.Code{problem.CodeInvalidArgs, problem.CodeBrowserSkillUnavailable}, missing...),
		Example: map[string]any{"reads_only": true}}, p.finishRecorder)
}

// record asks the recorder in the caller's name.
func (p *Platform) record(ctx context.Context, c *edge.Caller, q msg.Record) (*msg.Recorded, error) {
	if p.Recorder == nil {
		if q.Do == msg.RecordStart {
			return nil, noBrowser()
		}
		return nil, store.NoSkill("recorder session")
	}
	q.Tenant, q.Principal, q.Home = c.Tenant, c.Principal, c.User.UUID
	if !c.Key.IsZero() {
		q.Home = c.Key.UUID
	}
	return p.Recorder.Record(ctx, &q)
}

// recorder asks for something that is answered by the session.
func (p *Platform) recorder(ctx context.Context, c *edge.Caller, q msg.Record) (*skill.RecorderSession, error) {
	got, err := p.record(ctx, c, q)
	if err != nil {
		return nil, err
	}
	out := new(skill.RecorderSession)
	if err := json.Unmarshal(got.Session, out); err != nil {
		return nil, fmt.Errorf("read a recorder session: %w", err)
	}
	if out.Shot != "" {
		out.Shot = store.SkillShot(c.Tenant, id.SkillRunID(out.ID), out.Shot)
	}
	return out, nil
}

// noted keeps the response of what was done in a session, and writes its audit row.
func (p *Platform) noted(ctx context.Context, c *edge.Caller, out *skill.RecorderSession, action string, detail map[string]any) (*skill.RecorderSession, error) {
	if action == "" && c.Idem == nil {
		return out, nil
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*skill.RecorderSession, error) {
		if action == "" {
			return out, nil
		}
		return out, tx.Audit(ctx, action, "browser_skill.recorder_session", out.ID.UUID, detail)
	})
}

// callKey tells a recorder that a call is a repetition: what was done is not done again if its response could not be kept, or is
// not kept yet. Empty: the call has no key.
func callKey(c *edge.Caller) string {
	if c.Idem == nil {
		return ""
	}
	d := digest(c.Idem.IdemKey)
	return hex.EncodeToString(append(d[:], c.Idem.Fingerprint[:]...))
}

func (p *Platform) startRecorder(ctx context.Context, c *edge.Caller, in *startRecorder) (*skill.RecorderSession, error) {
	url := in.Body.StartURL
	action := skill.Action{Kind: skill.ActionKind(skill.Navigate), Value: (*skill.Text)(&url)}
	if err := action.Check(); err != nil {
		return nil, problem.Invalid("start_url", "must be an http or https URL without user info and templates")
	}
	residency, err := p.residency(ctx, c.Tenant)
	if err != nil {
		return nil, err
	}
	if reason := (skill.Scope{AnyHost: true, Residency: residency}).Allows(url); reason != "" {
		return nil, invalidSkill("start_url", string(reason))
	}
	if err := p.SourceURLs(ctx, url, true); err != nil {
		return nil, invalidSkill("start_url", err.Error())
	}
	key := callKey(c)
	out, err := p.recorder(ctx, c, msg.Record{Do: msg.RecordStart, URL: url, Resides: residency != nil, Residency: residency, Key: key})
	if err != nil {
		return nil, err
	}
	noted, err := p.noted(ctx, c, out, "browser_skill.recorder_session.create", nil)
	if err != nil { // the caller does not hear of the session, which would be in the way of the next one; a repetition may have it
		_, _ = p.record(context.WithoutCancel(ctx), c, msg.Record{Do: msg.RecordEnd, Session: out.ID, Key: key})
	}
	return noted, err
}

func (p *Platform) getRecorder(ctx context.Context, c *edge.Caller, in *readRecorder) (*skill.RecorderSession, error) {
	after := ""
	if m := shotOf.FindStringSubmatch(in.After); m != nil {
		after = m[2]
	}
	return p.recorder(ctx, c, msg.Record{Do: msg.RecordRead, Session: in.ID, After: after})
}

func (p *Platform) deleteRecorder(ctx context.Context, c *edge.Caller, in *oneRecorder) (*edge.Empty, error) {
	if _, err := p.record(ctx, c, msg.Record{Do: msg.RecordEnd, Session: in.ID}); err != nil {
		return nil, err
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*edge.Empty, error) {
		return nil, tx.Audit(ctx, "browser_skill.recorder_session.delete", "browser_skill.recorder_session", in.ID.UUID, nil)
	})
}

func (p *Platform) actInRecorder(ctx context.Context, c *edge.Caller, in *actRecorder) (*skill.RecorderSession, error) {
	b := &in.Body
	action := skill.Action{Kind: b.Kind, X: b.X, Y: b.Y, Target: b.Target, SecretRef: b.SecretRef, Commit: b.Commit, StepID: b.StepID, Param: b.Param, Name: b.Name, Type: b.Type, Attr: b.Attr}
	if len(b.Value) > 0 && string(b.Value) != "null" {
		action.Value = new(skill.Text)
		if err := json.Unmarshal(b.Value, action.Value); err != nil {
			return nil, problem.Invalid("value", "must be a string, a number or a boolean")
		}
	}
	if err := action.Check(); err != nil {
		return nil, err
	}
	doc, err := json.Marshal(&action)
	if err != nil {
		return nil, fmt.Errorf("write an action: %w", err)
	}
	out, err := p.recorder(ctx, c, msg.Record{Do: msg.RecordAct, Session: in.ID, Action: doc, Key: callKey(c)})
	if err != nil {
		return nil, err
	}
	return p.noted(ctx, c, out, "", nil)
}

func (p *Platform) finishRecorder(ctx context.Context, c *edge.Caller, in *finishRecorder) (*skill.RecorderSession, error) {
	out, err := p.recorder(ctx, c, msg.Record{Do: msg.RecordFinish, Session: in.ID, Values: json.RawMessage(in.Body.Params), Reads: in.Body.ReadsOnly})
	if err != nil {
		return nil, err
	}
	detail := map[string]any{"steps": len(out.Steps)}
	if out.DryRun != nil {
		detail["dry_run"] = out.DryRun.Status
	}
	return p.noted(ctx, c, out, "browser_skill.recorder_session.finish", detail)
}

// recorded returns the steps of a recorder session that a body names, and the tenant's residency. No other call gets the steps
// until over is told how this one ended: a session makes one skill, which forgets it. A session that is left is forgotten in
// an hour. An error that is no problem leaves it unknown whether the skill was saved.
func (p *Platform) recorded(ctx context.Context, c *edge.Caller, session *id.RecorderSessionID) (out store.SkillSteps, over func(error), err error) {
	over = func(error) {}
	if out.Residency, err = p.residency(ctx, c.Tenant); err != nil || session == nil {
		return out, over, err
	}
	holder := id.NewAnywhere().String()
	if c.Idem != nil { // a repetition of the call
		d := digest(c.Idem.IdemKey)
		holder = hex.EncodeToString(d[:])
	}
	got, err := p.record(ctx, c, msg.Record{Do: msg.RecordTaken, Session: *session, Holder: holder})
	if errors.Is(err, problem.New(problem.CodeBrowserSkillNotFound, "")) {
		return out, over, invalidSkill("recorder_session_id", "unknown session: it must be yours, have ended, and be of no other skill")
	}
	if err != nil {
		return out, over, err
	}
	over = func(err error) {
		q := msg.Record{Do: msg.RecordUsed, Session: *session, Holder: holder}
		if err != nil {
			q.Do = msg.RecordSpared
			if known := (*problem.Error)(nil); !errors.As(err, &known) {
				return
			}
		}
		_, _ = p.record(context.WithoutCancel(ctx), c, q)
	}
	if err = json.Unmarshal(got.Steps, &out.Recorded); err != nil {
		err = fmt.Errorf("read recorded steps: %w", err)
	}
	return out, over, err
}

// shotOf is the form of the key of a recorder session's picture, from the session on.
var shotOf = regexp.MustCompile(`([0-9a-f-]{36})/(p[0-9]+)\.jpg$`)

// recorderShot returns a picture of a recorder session of the caller; nil if the key is of none.
func (p *Platform) recorderShot(ctx context.Context, c *edge.Caller, rest string) (*edge.Download, error) {
	m := shotOf.FindStringSubmatch(rest)
	if m == nil || p.Recorder == nil {
		return nil, nil
	}
	session, err := id.Parse(m[1])
	if err != nil {
		return nil, nil
	}
	got, err := p.record(ctx, c, msg.Record{Do: msg.RecordPicture, Session: id.RecorderSessionID{UUID: session}, After: m[2]})
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &edge.Download{Name: m[2] + ".jpg", MediaType: "image/jpeg", Size: int64(len(got.JPEG)), Body: io.NopCloser(bytes.NewReader(got.JPEG)), Inline: true}, nil
}

func notFound(err error) bool {
	var p *problem.Error
	return errors.As(err, &p) && (p.Code == problem.CodeNotFound || p.Code == problem.CodeBrowserSkillNotFound)
}
