-- The tables of the shop. run.py creates them in an empty MariaDB.

CREATE TABLE products (
  id           INT PRIMARY KEY AUTO_INCREMENT,
  name         VARCHAR(60) NOT NULL,
  about        VARCHAR(120) NOT NULL,
  icon         VARCHAR(20) NOT NULL,
  price_cents  INT NOT NULL,
  stock        INT NOT NULL,                -- the total quantity, the `total` of STOCK.SET
  is_flash     BOOLEAN NOT NULL,
  starts_at_ms BIGINT NOT NULL,             -- Unix time: no orders before
  version      INT NOT NULL DEFAULT 1       -- rises with each change by the shop
);

-- One row for each order. The worker writes it from the events of the stock.
CREATE TABLE orders (
  id         CHAR(24) PRIMARY KEY,
  product_id INT NOT NULL,
  user       VARCHAR(64) NOT NULL,
  qty        INT NOT NULL,
  state      ENUM('reserved', 'sold', 'cancelled', 'expired') NOT NULL,
  ver        BIGINT NOT NULL,               -- the `ver` of the last event: an older event changes nothing
  changed_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
  INDEX (user, changed_at),
  INDEX (product_id, state, qty)
);

-- The books of the bank. The primary key lets it charge an order once.
CREATE TABLE payments (
  order_id CHAR(24) PRIMARY KEY,
  cents    INT NOT NULL,
  state    ENUM('charged', 'refunded') NOT NULL
);

-- The last run of each background job, and the largest fencing token: a smaller token is refused.
CREATE TABLE jobs (
  name  VARCHAR(20) PRIMARY KEY,
  fence BIGINT NOT NULL,
  tick  BIGINT NOT NULL
);
INSERT INTO jobs VALUES ('settle', 0, 0);

CREATE TABLE reports (
  tick          BIGINT PRIMARY KEY,
  fence         BIGINT NOT NULL,
  sold          INT NOT NULL,
  revenue_cents BIGINT NOT NULL
);

-- The programs have no password: they connect by a socket that only their user can reach.
CREATE USER shop@localhost;
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO shop@localhost;
CREATE USER canal@localhost;
GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO canal@localhost;
GRANT SELECT ON shop.products TO canal@localhost;
