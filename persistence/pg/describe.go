package pg

import (
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Readable returns an error if a connection string cannot be read. The error may hold a part of its password.
func Readable(url string) error {
	_, err := pgxpool.ParseConfig(url)
	return err
}

// Describe returns a description of a connection string's database for people, such as
// `database "svc" at db.example.com:5432`, without user and password.
func Describe(url string) string {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return "the given database"
	}
	return fmt.Sprintf("database %q at %s", cfg.Database, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
}
