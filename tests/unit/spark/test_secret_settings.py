"""Which settings of Spark are secret, and what of them is to be read nowhere."""

import pytest

from ottla.spark.secret_settings import secret_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.authenticate.secret", "hush"),
        ("spark.hadoop.fs.s3a.secret.key", "hush"),
        ("spark.hadoop.fs.s3a.access.key", "hush"),
        ("spark.hadoop.fs.s3a.accessKey", "hush"),
        ("spark.hadoop.fs.s3a.session.TOKEN", "hush"),
        ("spark.hadoop.fs.s3a.encryption.key", "hush"),
        ("spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net", "aHVzaA=="),
        ("spark.ssl.keyPassword", "hush"),
        # What is called a password is one, numbers too.
        ("spark.ssl.keyPassword", "1234"),
        ("spark.authenticate.secret", "20260101"),
        ("spark.hadoop.fs.s3a.secret.key", "1234"),
    ],
)
def test_what_spark_and_hadoop_hide_is_secret(name: str, value: str) -> None:
    assert secret_settings({name: value, "spark.app.name": "hush"}) == {name: [value]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.shuffle.partitions", "4"),
        ("spark.security.credentials.hive.token.enabled", "true"),
        ("spark.hadoop.some.useToken", "False"),
        ("spark.authenticate.secretBitLength", "256"),
        ("spark.hadoop.yarn.token.renew-interval", "24h"),
        ("spark.hadoop.some.password.length", "1.5"),
        ("spark.io.encryption.keySizeBits", "256"),
        ("spark.io.encryption.keygen.algorithm", "HmacSHA1"),
        ("spark.hadoop.fs.azure.account.keyprovider.lake", "org.example.Provider"),
        ("spark.authenticate.secret", ""),
        ("spark.driver.extraJavaOptions", "-Dtoken.enabled=true -Xmx1g"),
        ("spark.redaction.regex", "(?i)secret|pin"),
    ],
)
def test_what_says_whether_or_how_much_is_not(name: str, value: str) -> None:
    assert secret_settings({name: value}) == {}


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("-Xmx1g -Djavax.net.ssl.trustStorePassword=hush -Da=b", "hush"),
        ("jdbc:postgresql://db/lake?user=ada&password=hush&ssl=true", "hush"),
        ("sc://server/;token=hush;user_id=ada", "hush"),
    ],
)
def test_a_value_with_a_secret_in_it(value: str, secret: str) -> None:
    assert secret_settings({"spark.some.options": value}) == {"spark.some.options": [secret]}


def test_the_users_own_words_count_as_well() -> None:
    conf = {
        "spark.redaction.regex": "(?i)pin",
        "spark.pin": "0000",
        "spark.my.PIN.needed": "true",
        "spark.a": "b",
    }
    assert secret_settings(conf) == {"spark.pin": ["0000"]}
    conf["spark.redaction.regex"] = "(?i)["
    assert secret_settings(conf) == {}
