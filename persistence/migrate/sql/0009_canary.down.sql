DROP TABLE canary;
