package main

import (
	"bytes"
	"context"
	"errors"

	"agentsvc/actors/durable"
	"agentsvc/actors/skillrun"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
)

// maxShot bounds one screenshot of a browser skill.
const maxShot = 8 << 20

func (s *service) addSkillRuns(host durable.Config) {
	runs := skillrun.Config{Store: store.NewSkillRuns(s.pools.system), Browser: s.browser, Secrets: secrets{s.tables}, Files: screenshots{s.blobs}, Grants: s.tools, Vault: s.keys,
		Changed: s.skills.Changed, Hears: s.sent.hearers.Hears, Log: s.log}
	if s.mesh != nil {
		runs.Holder = durable.Holder(s.node, s.living)
	}
	skillrun.Register(s.node, s.writer, runs, host)
}

// secrets opens the secrets of browser skills, with an audit row for each.
type secrets struct{ tables *store.Store }

func (k secrets) Open(ctx context.Context, t id.TenantID, of id.SkillID, revision int, run id.SkillRunID, ref string) (string, error) {
	return k.tables.OpenSkillSecret(ctx, store.By{Tenant: t, Actor: "system"}, of, revision, run, ref)
}

// screenshots stores the screenshots of browser skills.
type screenshots struct{ blobs *blob.Store }

// Keep stores a screenshot. The row of its run exists, so nothing is in doubt.
func (f screenshots) Keep(ctx context.Context, t id.TenantID, run id.SkillRunID, step string, jpeg []byte) (string, error) {
	key := store.SkillShot(t, run, step)
	if _, _, err := f.blobs.Put(ctx, key, bytes.NewReader(jpeg), maxShot); err != nil {
		return "", err
	}
	f.blobs.Settle(key, true)
	return key, nil
}

// noBrowser is the browser of a node that has none.
type noBrowser struct{}

var errNoBrowser = errors.New("this node has no browser")

func (noBrowser) Available() error { return errNoBrowser }
func (noBrowser) Prepare(context.Context, *skill.Job) (skillrun.Session, *skill.Report, error) {
	return nil, nil, errNoBrowser
}
func (noBrowser) Read(context.Context, *skill.Job) (*skill.Report, error) { return nil, errNoBrowser }
func (noBrowser) Compensate(context.Context, *skill.Job) (*skill.Report, error) {
	return nil, errNoBrowser
}

