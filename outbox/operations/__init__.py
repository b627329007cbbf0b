"""What operators ask and do, behind the commands and the admin: look (`stats`), examine (`check`), act (`actions`),
change a record (`editing`). Nothing here harvests."""
