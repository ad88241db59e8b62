package membership

import (
	"embed"

	"agentsvc/persistence/pg"
)

//go:embed queries/*.sql
var files embed.FS

var queries = pg.Queries(files)
