package main

import (
	"bytes"
	"context"

	"agentsvc/cluster"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// maxShot bounds one screenshot of a browser skill.
const maxShot = 8 << 20

// secrets opens the secrets of browser skills, with an audit row for each.
type secrets struct{ tables *store.Store }

func (k secrets) Open(ctx context.Context, t id.TenantID, of id.SkillID, revision int, run id.SkillRunID, ref string) (string, error) {
	return k.tables.OpenSkillSecret(ctx, store.By{Tenant: t, Actor: "system"}, of, revision, run, ref)
}

// screenshots stores the screenshots of browser skills.
type screenshots struct{ blobs *blob.Store }

// Keep stores a screenshot. The row of its run, which names all of them, exists.
func (f screenshots) Keep(ctx context.Context, t id.TenantID, run id.SkillRunID, step string, jpeg []byte) (string, error) {
	key := store.SkillShot(t, run, step)
	if _, _, err := f.blobs.PutNamed(ctx, key, bytes.NewReader(jpeg), maxShot); err != nil {
		return "", err
	}
	return key, nil
}

// skillRunsAt asks the actors of runs of browser skills.
type skillRunsAt struct{ node *cluster.Node }

func (a skillRunsAt) ask(ctx context.Context, t id.TenantID, run id.SkillRunID, message any) (any, error) {
	return a.node.Ask(ctx, cluster.Address{Kind: msg.KindSkillRun, Tenant: t, ID: run.UUID}, message)
}
