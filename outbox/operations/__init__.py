"""What operators ask and do, behind the commands: look (``stats``), examine (``check``). Nothing here harvests."""
