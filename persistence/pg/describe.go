package pg

import (
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Describe returns a description of a connection string's database for people, such as
// `database "svc" at db.example.com:5432`, without user and password.
func Describe(url string) string {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return "the given database"
	}
	return fmt.Sprintf("database %q at %s", cfg.Database, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
}
