package store

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Agents returns agents, newest first, without archived ones.
func (v View) Agents(ctx context.Context, at id.AgentID, limit int) ([]api.Agent, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Agent](ctx, v, "agents", v.tenant, from, n)
}

// Agent returns one agent; an archived one is NOT_FOUND.
func (v View) Agent(ctx context.Context, a id.AgentID) (*api.Agent, error) {
	return found[api.Agent]("agent")(one[api.Agent](ctx, v, "agent", v.tenant, a))
}

// Published returns the agent's published version, 0 if it has none. ok is false for an agent
// that is unknown or archived.
func (v View) Published(ctx context.Context, a id.AgentID) (version int, ok bool, err error) {
	rows, err := scalars[*int](ctx, v, "agent_published", v.tenant, a)
	if err != nil || len(rows) == 0 {
		return 0, false, err
	}
	if rows[0] != nil {
		version = *rows[0]
	}
	return version, true, nil
}

// Versions returns the versions of an agent, newest first, after at.
func (v View) Versions(ctx context.Context, a id.AgentID, at, limit int) ([]api.AgentVersion, error) {
	_, n := before(id.UUID{}, limit)
	if at == 0 {
		at = math.MaxInt32
	}
	return listed[api.AgentVersion](ctx, v, "versions", v.tenant, a, at, n)
}

// Version returns one version of an agent.
func (v View) Version(ctx context.Context, a id.AgentID, version int) (*api.AgentVersion, error) {
	if version < 1 || version > math.MaxInt32 {
		return nil, problem.NotFound("version")
	}
	return found[api.AgentVersion]("version")(one[api.AgentVersion](ctx, v, "version", v.tenant, a, version))
}

func slugTaken() error {
	return problem.New(problem.CodeSlugTaken, "This slug exists in the tenant.")
}

// CreateAgent creates an agent. A requested slug that is taken is SLUG_TAKEN; without one the
// slug is made from the name.
func (t *Tx) CreateAgent(ctx context.Context, in *api.AgentCreate) (*api.Agent, error) {
	refer := &references{t: t}
	refer.node(ctx, in.NodeID)
	if err := refer.problem(); err != nil {
		return nil, err
	}
	row, err := withSlug(ctx, t, "agent_slugs", in.Slug, slugOf(in.Name, "agent"), func(slug string) (*api.Agent, error) {
		return one[api.Agent](ctx, t.View, "agent_insert", t.tenant, id.AgentID{UUID: id.NewAnywhere()}, slug, in.Name, in.Description, in.Emoji, in.NodeID)
	})
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "agent.create", "agent", row.ID.UUID, nil)
}

// withSlug inserts a row with the requested slug, or with the first free one that begins with
// base; the query taken lists the slugs in use. insert returns nil if the slug is taken.
func withSlug[T any](ctx context.Context, t *Tx, taken string, requested *string, base string, insert func(slug string) (*T, error)) (*T, error) {
	if requested != nil {
		row, err := insert(*requested)
		if err == nil && row == nil {
			err = slugTaken()
		}
		return row, err
	}
	// A conflict here means that another create committed after the free slug was chosen:
	// choose again.
	for range 10 {
		used, err := scalars[string](ctx, t.View, taken, t.tenant, base)
		if err != nil {
			return nil, err
		}
		if row, err := insert(free(base, used)); err != nil || row != nil {
			return row, err
		}
	}
	return nil, slugTaken()
}

// slugOf makes a slug from a name. Names without a Latin letter or digit all give otherwise.
func slugOf(name, otherwise string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() >= 48 {
			break
		}
	}
	if s := strings.Trim(b.String(), "-"); s != "" {
		return s
	}
	return otherwise
}

// free returns base, or base with the smallest number that is not taken.
func free(base string, taken []string) string {
	has := make(map[string]bool, len(taken))
	for _, s := range taken {
		has[s] = true
	}
	slug := base
	for n := 2; has[slug]; n++ {
		slug = base + "-" + strconv.Itoa(n)
	}
	return slug
}

// AgentSlugs returns the slugs among slugs that belong to agents that are not archived.
func (v View) AgentSlugs(ctx context.Context, slugs []string) ([]string, error) {
	if len(slugs) == 0 {
		return nil, nil
	}
	return scalars[string](ctx, v, "agents_of_slugs", v.tenant, slugs)
}

// PublishedAgent is an agent with its published version.
type PublishedAgent struct {
	ID               id.AgentID
	Slug             string
	PublishedVersion *int // nil: none
}

// PublishedAgents returns the agents with one of these ids or slugs, without archived ones.
func (v View) PublishedAgents(ctx context.Context, ids []id.AgentID, slugs []string) ([]PublishedAgent, error) {
	return all[PublishedAgent](ctx, v, "agents_published", v.tenant, ids, slugs)
}

// UpdateAgent changes the fields set in the patch.
func (t *Tx) UpdateAgent(ctx context.Context, a id.AgentID, p *api.AgentPatch) (*api.Agent, error) {
	row, err := t.lockAgent(ctx, a)
	if err != nil {
		return nil, err
	}
	set(&row.Slug, p.Slug)
	set(&row.Name, p.Name)
	set(&row.Description, p.Description)
	set(&row.Emoji, p.Emoji)
	refer := &references{t: t}
	refer.node(ctx, p.NodeID.OrPtr(nil))
	if err := refer.problem(); err != nil {
		return nil, err
	}
	row, err = one[api.Agent](ctx, t.View, "agent_update", t.tenant, a, row.Slug, row.Name, row.Description, row.Emoji, p.NodeID.OrPtr(row.NodeID))
	if pg.IsUnique(err, "agents_slug_key") {
		return nil, slugTaken()
	}
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "agent.update", "agent", a.UUID, nil)
}

func (t *Tx) lockAgent(ctx context.Context, a id.AgentID) (*api.Agent, error) {
	return found[api.Agent]("agent")(one[api.Agent](ctx, t.View, "agent_lock", t.tenant, a))
}

// ArchiveAgent archives an agent, pauses its triggers and revokes its embed keys, which it
// returns. Its runs and threads stay readable. Every transaction locks the rows in this
// order, so that none deadlocks.
func (t *Tx) ArchiveAgent(ctx context.Context, a id.AgentID) (ended []id.EmbedKeyID, err error) {
	if err := t.execFound(ctx, problem.NotFound("agent"), "agent_archive", t.tenant, a); err != nil {
		return nil, err
	}
	if err := t.pauseTriggers(ctx, a.UUID); err != nil {
		return nil, err
	}
	if ended, err = t.revokeEmbedKeys(ctx, a); err != nil {
		return nil, err
	}
	return ended, t.Audit(ctx, "agent.delete", "agent", a.UUID, nil)
}

// CreateVersion adds a draft. The caller must have checked the manifest.
func (t *Tx) CreateVersion(ctx context.Context, a id.AgentID, manifest json.RawMessage) (*api.Agent, *api.AgentVersion, error) {
	row, err := found[api.Agent]("agent")(one[api.Agent](ctx, t.View, "agent_latest", t.tenant, a))
	if err != nil {
		return nil, nil, err
	}
	version, err := one[api.AgentVersion](ctx, t.View, "version_insert", t.tenant, a, row.LatestVersion, jsonArg(manifest))
	if err != nil {
		return nil, nil, err
	}
	return row, version, t.Audit(ctx, "agent.version.create", "agent", a.UUID, map[string]int{"version": version.Version})
}

// Publish makes a version the one that new runs use; publishing an older one is a rollback.
// Publishing the published version changes nothing.
func (t *Tx) Publish(ctx context.Context, a id.AgentID, version int) (*api.Agent, *api.AgentVersion, error) {
	row, err := t.lockAgent(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	v, err := t.Version(ctx, a, version)
	if err != nil {
		return nil, nil, err
	}
	if row.PublishedVersion != nil && *row.PublishedVersion == version {
		return row, v, nil
	}
	// Supersede the published version first: there must never be two.
	if _, err := t.exec(ctx, "version_supersede", t.tenant, a); err != nil {
		return nil, nil, err
	}
	if v, err = one[api.AgentVersion](ctx, t.View, "version_publish", t.tenant, a, version); err != nil {
		return nil, nil, err
	}
	if row, err = one[api.Agent](ctx, t.View, "agent_publish", t.tenant, a, version); err != nil {
		return nil, nil, err
	}
	return row, v, t.Audit(ctx, "agent.publish", "agent", a.UUID, map[string]int{"version": version})
}
